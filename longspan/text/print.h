// The one place that writes to the terminal. No torch.
//
// Whatever the program says, on stdout or stderr, may hold texts of others: keys, rows, names of
// files and tensors, messages of other processes. So all of it goes through shown(); escapes of the
// program's own are added behind that. Only data for another program leaves as it is.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace longspan {

/// A message on stdout, or on stderr, through shown(). No line feed is added. What cannot be
/// written is lost.
void print_text(std::string_view text);
void print_error_text(std::string_view text);

/// A message and a line feed on stdout, at once.
void print_line(std::string_view text);

/// print_text and print_error_text, formatted.
template <typename... Args>
void print_out(fmt::format_string<Args...> format, Args&&... args) {
  print_text(fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void print_err(fmt::format_string<Args...> format, Args&&... args) {
  print_error_text(fmt::format(format, std::forward<Args>(args)...));
}

/// The program's own words on stderr, as they are, where no memory is left to clean them.
void print_last_words(std::string_view own_text);

/// A message on stdout in the terminal's faint colour, through shown().
void print_faint(std::string_view text);

/// Data on stdout for another program, byte for byte, at once. Throws UserError when it cannot be
/// written.
void print_data(std::string_view bytes);

}  // namespace longspan
