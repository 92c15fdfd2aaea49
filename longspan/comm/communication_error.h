// The exception of a collective that could not finish.
#pragma once

#include <stdexcept>
#include <string>

namespace longspan {

/// Another rank has ended, or the connection to it is lost, or it did not answer in time. The
/// message names this rank and the collective. Not a mistake of this rank's: the rank that ended
/// first says why; but where `of_library`, a library for which no host waits (NCCL) reports an
/// error itself, of this rank or of the way to others.
class CommunicationError : public std::runtime_error {
 public:
  explicit CommunicationError(const std::string& what, bool from_library = false)
      : std::runtime_error(what), of_library(from_library) {}
  bool of_library;
};

/// What a rank says that has lost the GPUs of others, with NCCL's reason; or its own GPU, whose
/// error torch's watchdog has met when it looked at a collective (cuda/gpu_error.h).
std::string lost_gpus_message(const std::string& reason);
/// How a user learns more of an error of NCCL, a sentence.
inline constexpr const char* kNcclSaysMore =
    "With NCCL_DEBUG=INFO in the environment, NCCL says more.";

/// The part of c10d's and Gloo's messages that helps: without source lines, stack traces and
/// advice.
std::string brief_reason(const std::exception& error);

/// The same of NCCL's messages, whose last line says what the GPU or the network has reported: all
/// of their lines, as one; also where torch's watchdog quotes them.
std::string reason_in_all_lines(const std::exception& error);

}  // namespace longspan
