# The pages for browsers, as data inside the program: all files of web/, and two libraries as Debian packages them. Each is served
# as /assets/PATH, so web/common/style.css is /assets/common/style.css; the page /NAME is web/NAME/index.html.
find_program(KVASIR_WEB_PYTHON python3 REQUIRED)
set(KVASIR_WEB_LIBRARIES
  lib/highlight.js=/usr/share/javascript/highlight.js/highlight.min.js
  lib/markdown-it.js=/usr/share/javascript/markdown-it/markdown-it.js)

# kvasir_web_assets(target) adds the generated source that defines web_assets() of server/web_assets.h.
function(kvasir_web_assets target)
  file(GLOB_RECURSE files CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/web ${PROJECT_SOURCE_DIR}/web/*)
  set(assets "")
  set(sources "")
  foreach(file ${files})
    list(APPEND assets ${file}=${PROJECT_SOURCE_DIR}/web/${file})
    list(APPEND sources ${PROJECT_SOURCE_DIR}/web/${file})
  endforeach()
  foreach(library ${KVASIR_WEB_LIBRARIES})
    string(REGEX REPLACE "^[^=]*=" "" source ${library})
    if(NOT EXISTS ${source})
      message(FATAL_ERROR "${source} is missing: run ./dev build, or install the packages of tools/packages.txt, set build")
    endif()
    list(APPEND assets ${library})
    list(APPEND sources ${source})
  endforeach()
  set(output ${CMAKE_CURRENT_BINARY_DIR}/web_assets.cc)
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${KVASIR_WEB_PYTHON} ${PROJECT_SOURCE_DIR}/tools/embed_web.py ${output} ${assets}
    DEPENDS ${PROJECT_SOURCE_DIR}/tools/embed_web.py ${sources}
    COMMENT "Embedding the pages for browsers"
    VERBATIM)
  set_source_files_properties(${output} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON SKIP_PRECOMPILE_HEADERS ON)
  target_sources(${target} PRIVATE ${output})
endfunction()
