# Flags that every target shares, and the function that makes one library of a folder.

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
