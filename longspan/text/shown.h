// Makes foreign text safe for terminals and logs. No torch.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace longspan {

/// Returns the text with all invisible characters written out: control characters except line feeds
/// and tabs (\x1b, \r, \u009b), line and paragraph separators and changes of writing direction
/// (\u2028, \u202e), and bytes that are not UTF-8 (\xff). Text in data, keys and names must not
/// move the cursor, set titles or hide text. Idempotent.
std::string shown(std::string_view text);

/// Returns a preview: at most `most` bytes of the text, cut between characters, with "..." if it
/// was cut.
std::string shortened(std::string_view text, size_t most);

}  // namespace longspan
