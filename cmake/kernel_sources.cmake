# The CUDA C++ of the kernels over rows goes into the program as text: NVRTC compiles it where a GPU is
# (longspan/cuda/compiler.h). So building needs no CUDA.
foreach(part arguments.h common.cuh norm.cu norm_backward.cu rotary.cu norm_rotary.cu gated.cu cross_entropy.cu
             dropout.cu packed.cu adamw_8bit.cu grouped_tiles.cuh grouped_gemm.cu grouped_rows.cu
             delta_arguments.h delta_chunks.cu delta_chunks_backward.cu delta_scan.cu causal_conv.cu)
  set(file ${CMAKE_CURRENT_SOURCE_DIR}/longspan/cuda/rows/${part})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  get_filename_component(name ${part} NAME_WE)
  string(TOUPPER CUDA_${name} variable)
  file(READ ${file} ${variable})
  # What a header says to compilers that include it.
  string(REPLACE "#pragma once\n" "" ${variable} "${${variable}}")
endforeach()
set(KERNEL_SOURCES ${CMAKE_CURRENT_BINARY_DIR}/kernel_sources.cpp)
configure_file(longspan/cuda/kernel_sources.cpp.in ${KERNEL_SOURCES} @ONLY)
