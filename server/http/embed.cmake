# Writes the C++ source OUTPUT that holds FILES, a list of NAME=PATH: see embedded_page.h.
set(arrays "")
set(table "")
set(number 0)
foreach(file IN LISTS FILES)
  string(REGEX MATCH "^([^=]+)=(.+)$" matched "${file}")
  set(name ${CMAKE_MATCH_1})
  file(READ ${CMAKE_MATCH_2} bytes HEX)
  string(REGEX REPLACE "(..)" "'\\\\x\\1'," bytes "${bytes}")
  string(APPEND arrays "constexpr char kFile${number}[] = {${bytes}};\n")
  string(APPEND table "      {\"${name}\", {kFile${number}, sizeof(kFile${number})}},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUTPUT} "#include \"server/http/embedded_page.h\"

namespace causeway::server {
namespace {

${arrays}
}  // namespace

const std::map<std::string, absl::string_view>& EmbeddedPage() {
  static const auto* const files = new std::map<std::string, absl::string_view>{
${table}  };
  return *files;
}

}  // namespace causeway::server
")
