# The library that says which tokens an output may go on with, from the sources that tools/fetch_xgrammar.py fetches. Its
# warnings are not ours. It is optimised in every build: a sanitizer's build of it at -O0 would be slower than its tests are long.
set(python ${PROJECT_SOURCE_DIR}/.venv/bin/python)
if(NOT EXISTS ${python})
  set(python python3)
endif()
execute_process(COMMAND ${python} ${PROJECT_SOURCE_DIR}/tools/fetch_xgrammar.py
  OUTPUT_VARIABLE xgrammar_source OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "tools/fetch_xgrammar.py failed: the line above says why")
endif()
# A new version is a new folder.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tools/fetch_xgrammar.py)

file(GLOB xgrammar_sources ${xgrammar_source}/cpp/*.cc ${xgrammar_source}/cpp/support/*.cc
  ${xgrammar_source}/cpp/converter_ext/*.cc)
add_library(xgrammar STATIC EXCLUDE_FROM_ALL ${xgrammar_sources})
# Two units, for as many cores; its converters define some names twice.
set_target_properties(xgrammar PROPERTIES CXX_STANDARD 17 UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 11)
file(GLOB xgrammar_converters ${xgrammar_source}/cpp/converter_ext/*.cc)
set_source_files_properties(${xgrammar_converters} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
target_include_directories(xgrammar SYSTEM
  PUBLIC ${xgrammar_source}/include ${xgrammar_source}/3rdparty/dlpack/include ${xgrammar_source}/cpp
  PRIVATE ${xgrammar_source}/3rdparty/picojson)
target_compile_definitions(xgrammar PUBLIC
  XGRAMMAR_LOG_CUSTOMIZE=1 XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
target_compile_options(xgrammar PRIVATE -w -O2)
target_link_libraries(xgrammar PRIVATE Threads::Threads)
foreach(sanitizer address thread)
  if(KVASIR_SANITIZE MATCHES ${sanitizer})
    target_compile_options(xgrammar PRIVATE -fsanitize=${sanitizer} -fno-omit-frame-pointer)
  endif()
endforeach()
