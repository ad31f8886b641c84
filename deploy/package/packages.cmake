# Three Debian packages, because they stand on different machines: a coordinator's needs no
# accelerator and no oneDNN, a site's worker should listen to nothing, and whoever only watches and
# gives orders (and holds the authority's key) should have neither.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME causeway)
set(CPACK_PACKAGE_VENDOR "Causeway")
# A package has to name somebody. This one is made by whoever builds it, and no address answers for
# all of them: .invalid is a domain that can never exist (RFC 2606), so mail bounces at once and
# reaches no stranger. Who publishes packages puts an address here and into the changelog.
set(CPACK_PACKAGE_CONTACT "Causeway maintainers <maintainers@causeway.invalid>")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_COMPONENTS_ALL ${packages})
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS OFF)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)

# A first line for lists, then paragraphs; CPack indents them.
set(about "Causeway trains one language model across datacenters that are joined by
thin links: sites train on their own machines and exchange small quantized
pieces of the model now and then, while training goes on (Streaming DiLoCo).
.")
set(CPACK_COMPONENT_CAUSEWAY-COORDINATOR_DESCRIPTION
    "coordinator of training runs across datacenters
${about}
This package has the coordinator, which merges what the sites send, and a
service for it.")
set(CPACK_COMPONENT_CAUSEWAY-WORKER_DESCRIPTION
    "worker of training runs across datacenters
${about}
This package has the worker, which trains at a site, makes token shards of
text, evaluates and exports what was trained, and a service for it.")
set(CPACK_COMPONENT_CAUSEWAYCTL_DESCRIPTION
    "watching and steering training runs across datacenters
${about}
This package has the operator's tools, the script that makes certificates
and tokens, and the documentation.")

set(CPACK_DEBIAN_CAUSEWAY-COORDINATOR_PACKAGE_DEPENDS adduser)
set(CPACK_DEBIAN_CAUSEWAY-COORDINATOR_PACKAGE_RECOMMENDS causewayctl)
set(CPACK_DEBIAN_CAUSEWAY-WORKER_PACKAGE_DEPENDS adduser)
set(CPACK_DEBIAN_CAUSEWAY-WORKER_PACKAGE_SUGGESTS causewayctl)
set(CPACK_DEBIAN_CAUSEWAYCTL_PACKAGE_DEPENDS "openssl, gawk | mawk")

foreach(package ${packages})
  string(TOUPPER ${package} PACKAGE)
  set(CPACK_DEBIAN_${PACKAGE}_PACKAGE_NAME ${package})
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/control/${package})
  file(MAKE_DIRECTORY ${folder})
  if(NOT package STREQUAL causewayctl)
    string(REPLACE causeway- "" role ${package})
    foreach(script postinst prerm postrm conffiles)
      configure_file(${CMAKE_CURRENT_SOURCE_DIR}/package/${script}.in ${folder}/${script} @ONLY)
      list(APPEND control_${package} ${folder}/${script})
    endforeach()
    set(CPACK_DEBIAN_${PACKAGE}_PACKAGE_CONTROL_EXTRA "${control_${package}}")
  endif()
  install(FILES package/copyright DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/${package}
          COMPONENT ${package} EXCLUDE_FROM_ALL)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/changelog.gz
          DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/${package}
          COMPONENT ${package} EXCLUDE_FROM_ALL)
endforeach()
add_custom_command(
  OUTPUT changelog.gz
  COMMAND gzip -9nc ${CMAKE_CURRENT_SOURCE_DIR}/package/changelog > changelog.gz
  DEPENDS package/changelog)
list(APPEND made changelog.gz)
include(CPack)
