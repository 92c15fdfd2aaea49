// The only code that writes to the terminal. No torch.
//
// Output may contain foreign text: keys, rows, names of files and tensors, messages of other
// processes. So all output passes shown(), and the program's own escapes are added afterwards. Only
// data for another program is written unchanged.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace longspan {

/// Writes a message to stdout or stderr, through shown(), without a line feed. Write errors are
/// ignored.
void print_text(std::string_view text);
void print_error_text(std::string_view text);

/// Writes a message and a line feed to stdout, and flushes.
void print_line(std::string_view text);

/// print_text and print_error_text with formatting.
template <typename... Args>
void print_out(fmt::format_string<Args...> format, Args&&... args) {
  print_text(fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void print_err(fmt::format_string<Args...> format, Args&&... args) {
  print_error_text(fmt::format(format, std::forward<Args>(args)...));
}

/// Writes the program's own text to stderr unchanged, without allocating memory.
void print_last_words(std::string_view own_text);

/// Writes a message to stdout in the terminal's faint colour, through shown().
void print_faint(std::string_view text);

/// Writes data for another program to stdout unchanged, and flushes. Throws UserError if the data
/// cannot be written.
void print_data(std::string_view bytes);

}  // namespace longspan
