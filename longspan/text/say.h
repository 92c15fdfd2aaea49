// Lines for the user that may be lost: nobody may read any more, or the disk of a log be full.
#pragma once

#include <cstdio>
#include <string>

namespace longspan {

/// Prints the text and a newline, at once. What cannot be written is left out, without an error:
/// what a run has done counts more than what it says.
inline void say_on(std::FILE* stream, const std::string& text) noexcept {
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fputc('\n', stream);
  std::fflush(stream);
  std::clearerr(stream);
}

}  // namespace longspan
