# Flags that every target shares, and the functions that make the library of a folder and install what users run.

# A second build of the same file costs nothing where ccache is installed.
find_program(TERRACE_CCACHE ccache)
if(TERRACE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${TERRACE_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TERRACE_CCACHE})
endif()

add_library(terrace_flags INTERFACE)
target_include_directories(terrace_flags INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
target_compile_options(terrace_flags INTERFACE -Wall -Wextra -Wshadow -Wno-missing-field-initializers -fno-strict-aliasing)
target_compile_definitions(terrace_flags INTERFACE _GNU_SOURCE TERRACE_VERSION="${PROJECT_VERSION}")
if(TERRACE_SANITIZE)
  target_compile_options(terrace_flags INTERFACE -fsanitize=${TERRACE_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(terrace_flags INTERFACE -fsanitize=${TERRACE_SANITIZE})
endif()

# What is linked into the preload library: no exceptions, no RTTI, no guards on statics, no stack protector (the pager
# runs with a thread control block of its own), so that nothing of libstdc++ is needed at run time.
add_library(terrace_preload_flags INTERFACE)
target_compile_options(terrace_preload_flags INTERFACE
  -fno-exceptions -fno-rtti -fno-threadsafe-statics -fno-stack-protector -fno-plt -ftls-model=initial-exec)
target_link_libraries(terrace_preload_flags INTERFACE terrace_flags)

# terrace_layer(NAME SOURCES...): the library of one folder, alias terrace::NAME, fit for the preload.
function(terrace_layer name)
  add_library(terrace_${name} STATIC ${ARGN})
  add_library(terrace::${name} ALIAS terrace_${name})
  target_link_libraries(terrace_${name} PRIVATE terrace_preload_flags)
  target_include_directories(terrace_${name} PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
endfunction()

# terrace_bench(NAME SOURCES... [LIBRARIES ...]): one benchmark program in bin/, called by scripts/bench.
function(terrace_bench name)
  cmake_parse_arguments(B "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${name} ${B_SOURCES})
  target_link_libraries(${name} PRIVATE terrace_flags ${B_LIBRARIES})
endfunction()

# Called last: what `cmake --install` copies. Only targets that this build has; the public headers, find_package(terrace)
# and pkg-config come with the public API.
function(terrace_install_rules)
  include(GNUInstallDirs)
  foreach(program terrace terraced)
    if(TARGET ${program})
      install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    endif()
  endforeach()
  foreach(library terrace_preload)
    if(TARGET ${library})
      install(TARGETS ${library} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
    endif()
  endforeach()
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md
          DESTINATION ${CMAKE_INSTALL_DOCDIR})
endfunction()
