# CUDA: whether it is there, and libraries whose kernels are built twice, for GPUs and for the
# tests' emulation of one (tests/emulation/emulator.h).

set(CAUSEWAY_HAVE_CUDA OFF)
if(NOT CAUSEWAY_CUDA STREQUAL "OFF" AND NOT CAUSEWAY_SANITIZE AND NOT CAUSEWAY_FUZZ)
  find_program(NVCC_PROGRAM nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
  if(NVCC_PROGRAM)
    set(CAUSEWAY_HAVE_CUDA ON)
  elseif(CAUSEWAY_CUDA STREQUAL "AUTO")
    message(NOTICE "No nvcc in PATH, $CUDA_HOME/bin or /usr/local/cuda/bin: building for CPUs alone")
  else()
    message(FATAL_ERROR "CAUSEWAY_CUDA is ${CAUSEWAY_CUDA}, but nvcc is neither in PATH nor in "
                        "$CUDA_HOME/bin or /usr/local/cuda/bin: install the CUDA Toolkit, or "
                        "configure with -DCAUSEWAY_CUDA=OFF")
  endif()
endif()

if(CAUSEWAY_HAVE_CUDA)
  set(CMAKE_CUDA_COMPILER ${NVCC_PROGRAM})
  set(CMAKE_CUDA_ARCHITECTURES ${CAUSEWAY_CUDA_ARCHITECTURES})
  if(CCACHE_PROGRAM)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  endif()
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc takes C++20.
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  # CMake 3.25 sets a property of a library that CUDA 13 no longer has, unless a project is content
  # with an older CMake.
  set(minimum ${CMAKE_MINIMUM_REQUIRED_VERSION})
  set(CMAKE_MINIMUM_REQUIRED_VERSION 3.24)
  find_package(CUDAToolkit REQUIRED)
  set(CMAKE_MINIMUM_REQUIRED_VERSION ${minimum})
  string(REPLACE ";" ", " architectures "${CAUSEWAY_CUDA_ARCHITECTURES}")
endif()

# cuDNN's headers, and those of its frontend; the library is opened when it is used.
set(CAUSEWAY_HAVE_CUDNN OFF)
if(CAUSEWAY_HAVE_CUDA AND NOT CAUSEWAY_CUDNN STREQUAL "OFF")
  # Python's packages put them into include and nvidia/cudnn/include.
  set(CUDNN_FRONTEND_INCLUDE "$ENV{CUDNN_FRONTEND_INCLUDE}" CACHE PATH "Folder of cudnn_frontend.h")
  find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h HINTS ${CUDNN_FRONTEND_INCLUDE})
  find_path(CUDNN_INCLUDE_DIR cudnn.h
    HINTS ${CUDNN_FRONTEND_INCLUDE}/../nvidia/cudnn/include ${CUDAToolkit_INCLUDE_DIRS})
  set(version 0)
  if(CUDNN_FRONTEND_INCLUDE_DIR)
    file(STRINGS ${CUDNN_FRONTEND_INCLUDE_DIR}/cudnn_frontend_version.h lines
      REGEX "define CUDNN_FRONTEND_(MAJOR|MINOR)_VERSION [0-9]+")
    string(REGEX REPLACE "[^0-9;]" "" version "${lines}")
    string(REPLACE ";" "." version "${version}")
  endif()
  if(CUDNN_INCLUDE_DIR AND version VERSION_GREATER_EQUAL 1.16)
    set(CAUSEWAY_HAVE_CUDNN ON)
  elseif(NOT CAUSEWAY_CUDNN STREQUAL "AUTO")
    message(FATAL_ERROR "CAUSEWAY_CUDNN is ${CAUSEWAY_CUDNN}, but cudnn_frontend.h (1.16 or later) or "
                        "cudnn.h is not found: install cuDNN's and its frontend's headers and name the folder of "
                        "the latter, -DCUDNN_FRONTEND_INCLUDE=FOLDER, or configure with "
                        "-DCAUSEWAY_CUDNN=OFF")
  endif()
endif()

# causeway_cuda_library(NAME SOURCES ... GPU_SOURCES ... KERNELS ... EXACT_KERNELS ... DEPS ...
# CUDA_DEPS ...):
# causeway::NAME for GPUs, where nvcc is, and causeway::NAME_emulated, for tests. SOURCES are host
# code, GPU_SOURCES host code that only GPUs have, KERNELS are *.cu; EXACT_KERNELS are compiled without fused multiply-add, so that they give
# the same bits as a CPU. CUDA_DEPS are the names of other libraries of this kind.
function(causeway_cuda_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;GPU_SOURCES;KERNELS;EXACT_KERNELS;DEPS;CUDA_DEPS" ${ARGN})
  if(CAUSEWAY_HAVE_CUDA)
    add_library(causeway_${name} STATIC
      ${ARG_SOURCES} ${ARG_GPU_SOURCES} ${ARG_KERNELS} ${ARG_EXACT_KERNELS})
    set_source_files_properties(${ARG_EXACT_KERNELS} PROPERTIES COMPILE_OPTIONS "--fmad=false")
    # CMake 3.31 and later would compile kernels together, too.
    set_source_files_properties(${ARG_KERNELS} ${ARG_EXACT_KERNELS}
      PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    target_compile_options(causeway_${name} PRIVATE
      "$<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings;-Xcompiler=-Wall;--expt-relaxed-constexpr>")
    target_compile_definitions(causeway_${name} PRIVATE
      "CAUSEWAY_CUDA_ARCHITECTURES=\"${architectures}\"")
    target_include_directories(causeway_${name} PUBLIC ${PROJECT_SOURCE_DIR})
    list(TRANSFORM ARG_CUDA_DEPS PREPEND causeway:: OUTPUT_VARIABLE deps)
    target_link_libraries(causeway_${name} PUBLIC ${ARG_DEPS} ${deps} CUDA::cudart_static)
    add_library(causeway::${name} ALIAS causeway_${name})
  endif()
  if(CAUSEWAY_TESTS)
    set(sources ${ARG_SOURCES})
    foreach(kernel ${ARG_KERNELS} ${ARG_EXACT_KERNELS})
      set(source ${CMAKE_CURRENT_BINARY_DIR}/emulated/${kernel}.cc)
      file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/${kernel})
      file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${path}\"\n" @ONLY)
      # Kernels are written for nvcc: for its warnings, and for vector loads of any type.
      set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON COMPILE_OPTIONS
        "-fno-strict-aliasing;-Wno-conversion;-Wno-sign-conversion;-Wno-unknown-pragmas;-Wno-unused-parameter;-Wno-shadow;$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>")
      list(APPEND sources ${source})
    endforeach()
    add_library(causeway_${name}_emulated STATIC ${sources})
    target_compile_definitions(causeway_${name}_emulated PRIVATE
      "CAUSEWAY_CUDA_ARCHITECTURES=\"80, 90, 100\"")
    target_include_directories(causeway_${name}_emulated PUBLIC ${PROJECT_SOURCE_DIR})
    list(TRANSFORM ARG_CUDA_DEPS REPLACE "(.+)" "causeway::\\1_emulated" OUTPUT_VARIABLE deps)
    target_link_libraries(causeway_${name}_emulated PUBLIC
      ${ARG_DEPS} ${deps} causeway::device_emulation)
    add_library(causeway::${name}_emulated ALIAS causeway_${name}_emulated)
  endif()
endfunction()

# causeway_cuda_test(NAME SOURCES ... DEPS ... CUDA_DEPS ...): the GoogleTest program NAME, on
# emulated devices, as a ctest entry; and, where nvcc is, NAME_gpu from the same sources, which
# only tests/gpu/pack builds and tests/gpu/run runs, on a machine with a GPU. Not under
# ThreadSanitizer, which takes a thousand times as long for a fiber.
function(causeway_cuda_test name)
  if(CAUSEWAY_SANITIZE MATCHES "thread")
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;CUDA_DEPS" ${ARGN})
  list(TRANSFORM ARG_CUDA_DEPS REPLACE "(.+)" "causeway::\\1_emulated" OUTPUT_VARIABLE deps)
  causeway_test(${name} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS} ${deps})
  if(CAUSEWAY_HAVE_CUDA)
    list(TRANSFORM ARG_CUDA_DEPS PREPEND causeway:: OUTPUT_VARIABLE deps)
    add_executable(${name}_gpu EXCLUDE_FROM_ALL ${ARG_SOURCES})
    target_include_directories(${name}_gpu PRIVATE ${PROJECT_SOURCE_DIR})
    target_link_libraries(${name}_gpu PRIVATE
      ${ARG_DEPS} ${deps} GTest::gmock GTest::gtest_main)
  endif()
endfunction()
