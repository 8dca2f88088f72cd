// The verbs of `terrace`, one file each, and the exit statuses that people and scripts rely on.
//
// Each verb takes the words after its own name and returns the exit status of the program.
#pragma once

#include <span>

namespace terrace::cli {

inline constexpr int kStatusJobEnded = 124;    // Terrace ended a running job, after its one line
inline constexpr int kStatusNotStarted = 125;  // it failed before the job started; also a usage error
inline constexpr int kStatusNotExecutable = 126;
inline constexpr int kStatusNotFound = 127;

int run_verb(std::span<char*> words);
int doctor_verb(std::span<char*> words);
int help_verb(std::span<char*> words);
int version_verb(std::span<char*> words);

}  // namespace terrace::cli
