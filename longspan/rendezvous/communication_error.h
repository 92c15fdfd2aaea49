// The exception of a failed collective.
#pragma once

#include <stdexcept>
#include <string>

namespace longspan {

/// Thrown on a rank whose collective fails because another rank has ended, has lost its connection,
/// or has not answered in time. The message names the throwing rank and the collective. The
/// throwing rank is not the cause; the rank that ended first reports the cause. With `of_library`,
/// the throwing rank may be the cause: a library with asynchronous errors (NCCL) reports an error
/// of this rank or of this rank's connections.
class CommunicationError : public std::runtime_error {
 public:
  explicit CommunicationError(const std::string& what, bool from_library = false)
      : std::runtime_error(what), of_library(from_library) {}
  bool of_library;
};

/// Returns the message for `reason`: an error of NCCL, or an error of this rank's own GPU that
/// torch's watchdog found at a collective (cuda/gpu_error.h).
std::string lost_gpus_message(const std::string& reason);
/// Advice on how to learn more about an error of NCCL, as one sentence.
inline constexpr const char* kNcclSaysMore =
    "With NCCL_DEBUG=INFO in the environment, NCCL says more.";

/// Returns the useful part of c10d's and Gloo's messages: without source lines, stack traces and
/// advice.
std::string brief_reason(const std::exception& error);

/// Returns the useful part of NCCL's messages: all lines as one, since the last line has the error
/// of the GPU or the network. Also finds such a message inside a message of torch's watchdog.
std::string reason_in_all_lines(const std::exception& error);

}  // namespace longspan
