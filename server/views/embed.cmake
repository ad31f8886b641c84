# Writes the C++ source OUTPUT that holds FILES, a list of NAME=PATH, and app.js, which is made of
# MODULES: see status_page.h. A module becomes a function that returns what it exports: so the page
# is one script, which a report has inside.
set(app "const modules = {};\n")
foreach(path IN LISTS MODULES)
  get_filename_component(name ${path} NAME_WE)
  file(READ ${path} text)
  string(REGEX MATCHALL "\nexport (const|function) [A-Za-z]+" exports "${text}")
  list(TRANSFORM exports REPLACE ".* " "")
  list(JOIN exports ", " exports)
  string(REGEX REPLACE "import (\\* as )?([^;]+) from '\\./([a-z]+)\\.js';" "const \\2 = modules.\\3;"
         text "${text}")
  string(REPLACE "\nexport " "\n" text "${text}")
  string(APPEND app "modules.${name} = (() => {\n${text}return { ${exports} };\n})();\n")
endforeach()
file(WRITE ${OUTPUT}.app.js "${app}")
list(APPEND FILES app.js=${OUTPUT}.app.js)

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
file(WRITE ${OUTPUT} "#include \"server/views/status_page.h\"

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
