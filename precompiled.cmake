# Precompiled headers: most of a compiler's time goes into the headers of the standard library,
# Abseil, protobuf, gRPC and GoogleTest. A source still includes by name what it uses: without
# CAUSEWAY_PCH it has nothing else.
#
# One header per kind of target and flag set, compiled once and shared: libraries are compiled with
# -fPIC, programs with -fPIE. nlohmann/json.hpp is in none: it costs each source that gets it 0.7
# seconds, wanted or not.

# Flags that bring a precompiled header of their own leave no room for these.
string(TOUPPER "CMAKE_CXX_FLAGS_${CMAKE_BUILD_TYPE}" flags)
if("${CMAKE_CXX_FLAGS} ${${flags}}" MATCHES "-include-pch")
  set(CAUSEWAY_PCH OFF)
endif()

set(PRECOMPILED_BASE
  <algorithm> <array> <atomic> <bit> <cmath> <cstdint> <cstring> <deque> <functional> <limits> <map>
  <memory> <optional> <set> <span> <string> <thread> <utility> <vector>
  <absl/base/thread_annotations.h> <absl/status/status.h> <absl/status/statusor.h>
  <absl/strings/match.h> <absl/strings/numbers.h> <absl/strings/str_cat.h>
  <absl/strings/str_format.h> <absl/strings/str_join.h> <absl/strings/str_split.h>
  <absl/strings/string_view.h> <absl/synchronization/mutex.h> <absl/time/clock.h>
  <absl/time/time.h> <google/protobuf/message.h> <google/protobuf/repeated_field.h>)
set(PRECOMPILED_GRPC <grpcpp/grpcpp.h>)
set(PRECOMPILED_TEST <gmock/gmock.h> <gtest/gtest.h>)

# causeway_precompiled(TARGET): it takes part.
function(causeway_precompiled target)
  set_property(GLOBAL APPEND PROPERTY CAUSEWAY_PRECOMPILED ${target})
endfunction()

# Whether a target links a library, itself or through others, as variable `out`.
function(causeway_reaches target library out)
  set(known CAUSEWAY_REACHES_${library}_${target})
  get_property(answer GLOBAL PROPERTY ${known})
  if("${answer}" STREQUAL "")
    set(answer OFF)
    get_target_property(next ${target} INTERFACE_LINK_LIBRARIES)
    get_target_property(type ${target} TYPE)
    if(type STREQUAL "EXECUTABLE")
      get_target_property(next ${target} LINK_LIBRARIES)
    endif()
    foreach(name ${next})
      if(name STREQUAL library)
        set(answer ON)
      elseif(name MATCHES "^causeway::")
        causeway_reaches(${name} ${library} below)
        if(below)
          set(answer ON)
        endif()
      endif()
    endforeach()
    set_property(GLOBAL PROPERTY ${known} ${answer})
  endif()
  set(${out} ${answer} PARENT_SCOPE)
endfunction()

# Gives every target that takes part the header of its kind. Called last, when all links are known.
function(causeway_precompile)
  if(NOT CAUSEWAY_PCH)
    return()
  endif()
  get_property(targets GLOBAL PROPERTY CAUSEWAY_PRECOMPILED)
  foreach(target ${targets})
    get_target_property(type ${target} TYPE)
    string(TOLOWER precompiled_${type} kind)
    set(headers ${PRECOMPILED_BASE})
    set(links protobuf::libprotobuf)
    foreach(library gRPC::grpc++=GRPC GTest::gmock=TEST)
      string(REPLACE "=" ";" library ${library})
      list(GET library 1 name)
      list(GET library 0 library)
      causeway_reaches(${target} ${library} reaches)
      if(reaches)
        string(TOLOWER ${kind}_${name} kind)
        list(APPEND headers ${PRECOMPILED_${name}})
        list(APPEND links ${library})
      endif()
    endforeach()
    if(NOT TARGET ${kind})
      set(source ${CMAKE_BINARY_DIR}/precompiled/${kind}.cc)
      file(CONFIGURE OUTPUT ${source} CONTENT "int main() {}\n")
      if(type STREQUAL "EXECUTABLE")
        add_executable(${kind} EXCLUDE_FROM_ALL ${source})
      else()
        add_library(${kind} STATIC EXCLUDE_FROM_ALL ${source})
      endif()
      target_link_libraries(${kind} PRIVATE ${links})  # For the macros that they define.
      target_precompile_headers(${kind} PRIVATE ${headers})
    endif()
    set_target_properties(${target} PROPERTIES PRECOMPILE_HEADERS_REUSE_FROM ${kind})
  endforeach()
endfunction()

# GCC forgets that what it precompiled is a system header, and warns of the standard library's own
# strings and optionals, inlined. Builds without CAUSEWAY_PCH keep these warnings. A header that
# does not fit a source's flags costs time only: that stays a warning.
if(CAUSEWAY_PCH)
  foreach(warning array-bounds free-nonheap-object maybe-uninitialized restrict stringop-overflow
          stringop-overread error=invalid-pch)
    add_compile_options("$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-${warning}>")
  endforeach()
  # A precompiled header of clang names no time, so that a cache can know it again.
  add_compile_options("$<$<COMPILE_LANG_AND_ID:CXX,Clang>:SHELL:-Xclang -fno-pch-timestamp>")
endif()
