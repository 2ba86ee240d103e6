# Flags that every target of the project shares, and the two functions that declare its targets.

add_library(kvasir_flags INTERFACE)
target_include_directories(kvasir_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_compile_options(kvasir_flags INTERFACE
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Werror
  # A product and a sum are fused only where the code says fma: the bits of every output depend on it.
  -ffp-contract=off -fno-fast-math)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(KVASIR_X86_64 ON)
  # Counting bits is then one instruction. src/base/cpu_floor.h says so on a CPU that has less.
  target_compile_options(kvasir_flags INTERFACE -march=x86-64-v2)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # At -O3, GCC 12 takes "x" + std::string for an overlapping copy (its bug 105651).
  target_compile_options(kvasir_flags INTERFACE -Wno-restrict)
  target_compile_options(kvasir_flags INTERFACE -Wsuggest-override)
endif()
if(KVASIR_MUTANTS)
  target_compile_definitions(kvasir_flags INTERFACE KVASIR_MUTANTS=1)
endif()
if(KVASIR_SANITIZE)
  # The compilers' own macros for this differ.
  target_compile_definitions(kvasir_flags INTERFACE KVASIR_SANITIZED=1)
  target_compile_options(kvasir_flags INTERFACE
    -fsanitize=${KVASIR_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  if(KVASIR_SANITIZE MATCHES "address" AND KVASIR_SANITIZE MATCHES "undefined")
    # Checks of every pointer: a third of a build's time for what AddressSanitizer finds, too, or what this
    # processor allows.
    target_compile_options(kvasir_flags INTERFACE -fno-sanitize=null,object-size,vptr,alignment,pointer-overflow)
    if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
      # This check puts data before each function, which clang 14 cannot do for the parts of a coroutine.
      target_compile_options(kvasir_flags INTERFACE -fno-sanitize=function)
    endif()
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
  target_compile_definitions(kvasir_flags INTERFACE BOOST_ASIO_DISABLE_FENCED_BLOCK KVASIR_SANITIZED_THREAD=1)
endif()
if(KVASIR_FUZZERS)
  target_compile_options(kvasir_flags INTERFACE -fsanitize=fuzzer-no-link)
  target_link_options(kvasir_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# kvasir_precompiled(kvasir_headers src/base/precompiled.h kvasir_flags)
# makes a target whose precompiled headers others use by REUSE_FROM; they have the same flags.
function(kvasir_precompiled name header flags)
  file(CONFIGURE OUTPUT ${name}.cc CONTENT "// Only for its precompiled headers.\n")
  add_library(${name} OBJECT ${CMAKE_CURRENT_BINARY_DIR}/${name}.cc)
  target_link_libraries(${name} PRIVATE ${flags} ${ARGN})
  target_precompile_headers(${name} PRIVATE ${PROJECT_SOURCE_DIR}/${header})
endfunction()

# What must have been built before a source can be read: the static checks need it, a build sees to it.
add_custom_target(generated_headers)

# kvasir_library(base SOURCES a.cc b.cc DEPS contract fmt::fmt PRIVATE_DEPS ICU::uc)
# makes the static library kvasir_base, one for each folder of src/. DEPS without "::" are folders of src/.
# Sources of one target are compiled together (CMakePresets.json), so names in anonymous namespaces differ within a
# target. EDGE: it talks to the outside, by sockets, JSON or the command line, and reads large headers for that: those are
# precompiled, and builds with a sanitizer do not optimise it. COLD: no request passes through it, so a release build
# takes -O1, which is a third of its time.
function(kvasir_library name)
  cmake_parse_arguments(ARG "EDGE;COLD" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
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
  if(ARG_SOURCES)
    if(ARG_EDGE)
      kvasir_edge(${target})
    elseif(KVASIR_PRECOMPILE)
      target_precompile_headers(${target} REUSE_FROM kvasir_headers)
    endif()
    if(ARG_COLD)
      kvasir_cold(${target})
    endif()
  endif()
endfunction()

# What COLD means, for a library or a program.
function(kvasir_cold target)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${target} PRIVATE -O1)
  endif()
endfunction()

# What EDGE means, for a library or a program.
function(kvasir_edge target)
  if(KVASIR_SANITIZE)
    target_compile_options(${target} PRIVATE -O0)
  endif()
  if(KVASIR_PRECOMPILE)
    target_precompile_headers(${target} REUSE_FROM kvasir_edge_headers)
  endif()
endfunction()

# kvasir_test(cache SOURCES pool_test.cc DEPS cache LABELS unit SHARDS 2)
# makes the GoogleTest program cache_test. It is one CTest entry, cache, or one for each of its shards, so that no case
# costs a process. Tests themselves are not optimised, which halves their build; what they drive is: the libraries, and
# the sources that do not end in _test.cc. The labels name the builds in which ./dev test runs it (CONTRIBUTING.md); the
# target tests_LABEL builds all programs with a label. SLOTS: it keeps so many cores busy (1).
function(kvasir_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;SHARDS;SLOTS" "SOURCES;DEPS;LABELS" ${ARGN})
  set(target ${name}_test)
  set(tests ${ARG_SOURCES})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  set(rig ${ARG_SOURCES})
  list(FILTER rig EXCLUDE REGEX "_test\\.cc$")
  add_executable(${target} ${tests})
  target_link_libraries(${target} PRIVATE kvasir_test_flags GTest::gtest_main)
  target_compile_options(${target} PRIVATE -O0)
  if(KVASIR_PRECOMPILE)
    target_precompile_headers(${target} REUSE_FROM kvasir_test_headers)
  endif()
  list(TRANSFORM ARG_DEPS REPLACE "^([^:]+)$" "kvasir_\\1" OUTPUT_VARIABLE libraries)
  target_link_libraries(${target} PRIVATE ${libraries})
  if(rig)
    add_library(${target}_rig OBJECT ${rig})
    target_link_libraries(${target}_rig PUBLIC kvasir_test_flags ${libraries})
    target_link_libraries(${target} PRIVATE ${target}_rig)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  # In a release build these run beside the end-to-end tests, which mostly wait, several of them for each core.
  if(NOT ARG_SLOTS AND CMAKE_BUILD_TYPE STREQUAL "Release" AND ARG_LABELS MATCHES "bits|model|apps")
    set(ARG_SLOTS 2)
  endif()
  foreach(label ${ARG_LABELS})
    if(NOT TARGET tests_${label})
      add_custom_target(tests_${label})
    endif()
    add_dependencies(tests_${label} ${target})
  endforeach()
  if(NOT ARG_SHARDS)
    set(ARG_SHARDS 1)
  endif()
  math(EXPR last "${ARG_SHARDS} - 1")
  foreach(shard RANGE ${last})
    set(entry ${name})
    set(environment "")
    if(last GREATER 0)
      set(entry ${name}.${shard})
      set(environment "GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${shard}")
    endif()
    add_test(NAME ${entry} COMMAND ${target} --gtest_brief=1)
    set_tests_properties(${entry} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT "${environment}")
    if(ARG_SLOTS)
      set_tests_properties(${entry} PROPERTIES PROCESSORS ${ARG_SLOTS})
    endif()
  endforeach()
endfunction()

# kvasir_mutants(exec "Mutants.*")
# These cases of the program exec_test seed faults, so they run where faults are compiled in; a program whose label has its
# home in the release build has an entry of its own for them, exec.mutants, with the label mutants.
function(kvasir_mutants name filter)
  if(NOT KVASIR_MUTANTS)
    return()
  endif()
  add_test(NAME ${name}.mutants COMMAND ${name}_test --gtest_brief=1 --gtest_filter=${filter})
  set_tests_properties(${name}.mutants PROPERTIES LABELS mutants TIMEOUT 600 PROCESSORS 2)
  if(NOT TARGET tests_mutants)
    add_custom_target(tests_mutants)
  endif()
  add_dependencies(tests_mutants ${name}_test)
endfunction()
