// Texts of others, made fit for a terminal and for a log. No torch.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace longspan {

/// The text with everything written out that would not be seen as a character of its own: control
/// characters but for line feeds and tabs (\x1b, \r, \u009b), line and paragraph separators and
/// what turns the direction of writing (\u2028, \u202e), and bytes that are no UTF-8 (\xff). What
/// stands in data, in keys, in names of files and tensors must not move the cursor, set titles or
/// hide text. Cleaning a text twice changes nothing.
std::string shown(std::string_view text);

/// A preview: at most `most` bytes of the text, cut between two characters, and "..." where
/// something was cut.
std::string shortened(std::string_view text, size_t most);

}  // namespace longspan
