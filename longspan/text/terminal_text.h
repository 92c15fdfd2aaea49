// Text of others, made fit for a terminal. No torch.
#pragma once

#include <string>
#include <string_view>

namespace longspan {

/// The text with its control characters written out (\x1b, \r, \u009b), but for line feeds and
/// tabs: what a model writes must not move the cursor, set titles or hide text. `text` is UTF-8 in
/// whole characters.
std::string without_controls(std::string_view text);

}  // namespace longspan
