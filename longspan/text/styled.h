// Texts in the terminal's colours. No torch.
#pragma once

#include <string>
#include <vector>

namespace longspan {

enum class Style { kPlain, kHeading, kFaint, kWarning, kTrained, kSpecial, kTrainedSpecial };

struct StyledText {
  std::string text;
  Style style = Style::kPlain;
};

/// Returns the texts, each through shown(), with the escapes of their styles. The result may be
/// printed unchanged (print_data). A style ends before each line feed, for pagers.
std::string styled(const std::vector<StyledText>& texts);

/// Returns the texts, each through shown(), without colours. Trained texts stand in brackets, which
/// no other text has.
std::string bracketed(const std::vector<StyledText>& texts);
inline constexpr const char *kTrainedBegin = "⟦", *kTrainedEnd = "⟧";

}  // namespace longspan
