# Kernels for GPUs are compiled by nvcc of CUDA 13 or later, if it is here with the runtime's headers and static library:
# then KVASIR_CUDA is true. Nothing that is built by default needs it.
option(KVASIR_WITH_CUDA "kvasir serves on a GPU, too (--device cuda): needs nvcc of CUDA 13" OFF)
set(KVASIR_CUDA FALSE)
find_program(KVASIR_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda/bin)
if(KVASIR_NVCC)
  execute_process(COMMAND ${KVASIR_NVCC} --version OUTPUT_VARIABLE nvcc_version ERROR_QUIET)
  string(REGEX MATCH "release ([0-9.]+)" ignored "${nvcc_version}")
  set(nvcc_version "${CMAKE_MATCH_1}")
  get_filename_component(nvcc_folder "${KVASIR_NVCC}" REALPATH)
  get_filename_component(nvcc_folder "${nvcc_folder}" DIRECTORY)
  find_library(KVASIR_CUDART cudart_static HINTS ${nvcc_folder}/../lib64 ${nvcc_folder}/../targets/x86_64-linux/lib)
  find_path(KVASIR_CUDA_INCLUDE cuda_runtime.h HINTS ${nvcc_folder}/../include ${nvcc_folder}/../targets/x86_64-linux/include)
  if(nvcc_version VERSION_GREATER_EQUAL 13 AND KVASIR_CUDART AND KVASIR_CUDA_INCLUDE)
    set(KVASIR_CUDA TRUE)
    add_library(kvasir_cudart INTERFACE)
    target_include_directories(kvasir_cudart SYSTEM INTERFACE ${KVASIR_CUDA_INCLUDE})
    target_link_libraries(kvasir_cudart INTERFACE ${KVASIR_CUDART} Threads::Threads ${CMAKE_DL_LIBS} rt)
  else()
    message(STATUS "No kernels for GPUs: they need CUDA 13 or later, cudart_static and cuda_runtime.h "
      "(nvcc ${nvcc_version}; ${KVASIR_CUDART}; ${KVASIR_CUDA_INCLUDE})")
  endif()
endif()

if(KVASIR_WITH_CUDA AND NOT KVASIR_CUDA)
  message(FATAL_ERROR "KVASIR_WITH_CUDA needs nvcc of CUDA 13 or later, cudart_static and cuda_runtime.h: install CUDA's toolkit and "
    "set CUDA_HOME to it, or leave the option out")
endif()

# kvasir_cuda_objects(objects a.cu b.cu) compiles for Hopper and puts the object files' names into `objects`.
# A product and a sum are fused only where the code says fma, subnormals are kept, division and root round to nearest:
# the bits of every output depend on it. Registers that spill to memory are an error.
function(kvasir_cuda_objects out)
  foreach(source ${ARGN})
    get_filename_component(path ${source} ABSOLUTE)
    get_filename_component(name ${source} NAME_WE)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.cu.o)
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${KVASIR_NVCC} -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a
        -fmad=false -ftz=false -prec-div=true -prec-sqrt=true --expt-relaxed-constexpr
        -Xptxas=-warn-spills,-Werror
        -I${PROJECT_SOURCE_DIR}/src -MD -MF ${object}.d -MT ${object} -c ${path} -o ${object}
      DEPENDS ${path}
      DEPFILE ${object}.d
      COMMENT "Compiling ${source} for Hopper"
      VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  set(${out} ${objects} PARENT_SCOPE)
endfunction()
