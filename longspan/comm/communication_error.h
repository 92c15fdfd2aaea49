// The exception of a collective that could not finish.
#pragma once

#include <stdexcept>
#include <string>

namespace longspan {

/// Another rank has ended, or the connection to it is lost, or it did not answer in time. The
/// message names this rank and the collective. Not a mistake of this rank's: the rank that ended
/// first says why.
class CommunicationError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The part of c10d's and Gloo's messages that helps: without source lines, stack traces and
/// advice.
std::string brief_reason(const std::exception& error);

/// The same of NCCL's messages, whose last line says what the GPU or the network has reported: all
/// of their lines, as one.
std::string reason_in_all_lines(const std::exception& error);

}  // namespace longspan
