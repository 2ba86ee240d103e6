# Flags that every target of the project shares, and the two functions that declare its targets.

add_library(kvasir_flags INTERFACE)
target_include_directories(kvasir_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_compile_options(kvasir_flags INTERFACE
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Werror
  # A product and a sum are fused only where the code says fma: the bits of every output depend on it.
  -ffp-contract=off -fno-fast-math)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # At -O3, GCC 12 takes "x" + std::string for an overlapping copy (its bug 105651).
  target_compile_options(kvasir_flags INTERFACE -Wno-restrict)
endif()
if(KVASIR_MUTANTS)
  target_compile_definitions(kvasir_flags INTERFACE KVASIR_MUTANTS=1)
endif()
if(KVASIR_SANITIZE)
  target_compile_options(kvasir_flags INTERFACE
    -fsanitize=${KVASIR_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  if(KVASIR_SANITIZE MATCHES "address" AND KVASIR_SANITIZE MATCHES "undefined")
    # Checks of every pointer: a third of a build's time for what AddressSanitizer finds, too, or what this
    # processor allows.
    target_compile_options(kvasir_flags INTERFACE -fno-sanitize=null,object-size,vptr,alignment)
  endif()
  target_link_options(kvasir_flags INTERFACE -fsanitize=${KVASIR_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Through instrumented code GCC 12 sees uninitialised members of std::variant that are none.
    target_compile_options(kvasir_flags INTERFACE -Wno-maybe-uninitialized)
  endif()
endif()
if(KVASIR_SANITIZE MATCHES "thread")
  # ThreadSanitizer does not understand fences. Asio's are an extra on top of its locks, so do without them; a
  # fence of our own stays a compile error here.
  target_compile_definitions(kvasir_flags INTERFACE BOOST_ASIO_DISABLE_FENCED_BLOCK)
endif()
if(KVASIR_FUZZERS)
  target_compile_options(kvasir_flags INTERFACE -fsanitize=fuzzer-no-link)
  target_link_options(kvasir_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# What must have been built before a source can be read: the static checks need it, a build sees to it.
add_custom_target(generated_headers)

# kvasir_library(base SOURCES a.cc b.cc DEPS contract fmt::fmt PRIVATE_DEPS ICU::uc)
# makes the static library kvasir_base, one for each folder of src/. DEPS without "::" are folders of src/.
# Sources of one target are compiled together (CMakePresets.json), so names in anonymous namespaces differ within a
# target.
function(kvasir_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  set(target kvasir_${name})
  if(ARG_SOURCES)
    add_library(${target} STATIC ${ARG_SOURCES})
    set(scope PUBLIC)
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_link_libraries(${target} ${scope} kvasir_flags)
  foreach(dep ${ARG_DEPS})
    if(dep MATCHES "::")
      target_link_libraries(${target} ${scope} ${dep})
    else()
      target_link_libraries(${target} ${scope} kvasir_${dep})
    endif()
  endforeach()
  if(ARG_PRIVATE_DEPS)
    target_link_libraries(${target} PRIVATE ${ARG_PRIVATE_DEPS})
  endif()
endfunction()

# kvasir_test(cache SOURCES pool_test.cc DEPS cache LABELS unit)
# makes the GoogleTest program cache_test and registers each of its cases with CTest.
function(kvasir_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  set(target ${name}_test)
  add_executable(${target} ${ARG_SOURCES})
  target_link_libraries(${target} PRIVATE kvasir_flags GTest::gtest GTest::gmock GTest::gtest_main)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(${target} PRIVATE KVASIR_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  foreach(dep ${ARG_DEPS})
    if(dep MATCHES "::")
      target_link_libraries(${target} PRIVATE ${dep})
    else()
      target_link_libraries(${target} PRIVATE kvasir_${dep})
    endif()
  endforeach()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  # tests_unit builds all the programs with this label: a sanitizer's run need not build the others.
  foreach(label ${ARG_LABELS})
    if(NOT TARGET tests_${label})
      add_custom_target(tests_${label})
    endif()
    add_dependencies(tests_${label} ${target})
  endforeach()
  gtest_discover_tests(${target} TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
endfunction()
