#include "longspan/report/data_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "longspan/text/counted.h"
#include "longspan/text/progress_bar.h"

namespace longspan {

namespace {

constexpr int64_t kBins = 10, kBarWidth = 40;
constexpr size_t kDrawnSets = 8;

/// Characters of a text in UTF-8.
size_t width_of(const std::string& text) {
  return std::ranges::count_if(text, [](unsigned char byte) { return (byte & 0xc0) != 0x80; });
}

/// Returns a line for each row. `ends`: text behind each row; empty: none.
std::string aligned(const std::vector<std::vector<std::string>>& table,
                    const std::vector<std::string>& ends = {}) {
  std::vector<size_t> widths(table[0].size(), 0);
  for (const std::vector<std::string>& row : table) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string text;
  for (size_t k = 0; k < table.size(); ++k) {
    for (size_t i = 0; i < table[k].size(); ++i) {
      const std::string& cell = table[k][i];
      const std::string space(widths[i] - width_of(cell), ' ');
      text += i == 0 ? cell + space : "  " + space + cell;
    }
    if (!ends.empty() && !ends[k].empty()) text += "  " + ends[k];
    text += "\n";
  }
  return text;
}

std::string bars_of(const DataSetNumbers& set, int64_t cutoff_len) {
  const std::vector<LengthBin> bins = length_bins(set.lengths, kBins);
  int64_t most = 1;
  for (const LengthBin& bin : bins) most = std::max(most, bin.count);
  std::vector<std::vector<std::string>> table;
  std::vector<std::string> bars;
  for (const auto& [begin, end, count] : bins) {
    table.push_back(
        {fmt::format("  {} to {}", with_commas(begin), with_commas(end - 1)), with_commas(count)});
    std::string& bar = bars.emplace_back();
    const int64_t width = count == 0 ? 0 : std::max<int64_t>(1, count * kBarWidth / most);
    for (int64_t i = 0; i < width; ++i) bar += "█";
    if (begin <= cutoff_len && cutoff_len < end - 1 && set.num_cut > 0) {
      bar += fmt::format(" cutoff_len {}", cutoff_len);
    }
  }
  return aligned(table, bars);
}

Style style_of(const TokenPiece& piece) {
  switch (piece.kind) {
    case TokenPiece::Kind::kSpecial:
    case TokenPiece::Kind::kPicture:
      return piece.is_trained ? Style::kTrainedSpecial : Style::kSpecial;
    case TokenPiece::Kind::kGap:
      return Style::kFaint;
    case TokenPiece::Kind::kText:
      break;
  }
  return piece.is_trained ? Style::kTrained : Style::kPlain;
}

/// Joins neighbours of one style.
void add(std::vector<StyledText>& texts, const std::string& text, Style style) {
  if (!texts.empty() && texts.back().style == style) {
    texts.back().text += text;
  } else {
    texts.push_back({text, style});
  }
}

}  // namespace

std::string packing_text(const PackedRows& packed) {
  std::string text = packed.report.text();
  if (packed.num_half_empty > 0) {
    text += fmt::format("; {} less than half full", counted(packed.num_half_empty, "row"));
  }
  if (packed.num_split > 0) {
    text += fmt::format("; {} {} in the next row", counted(packed.num_split, "text"),
                        packed.num_split == 1 ? "continues" : "continue");
  }
  return text + ".";
}

std::string tokens_text(const ShownDocument& document) {
  const double share = static_cast<double>(document.num_trained) /
                       static_cast<double>(std::max<int64_t>(document.num_tokens, 1));
  return fmt::format("{}, {} of them trained ({})", counted(document.num_tokens, "token"),
                     with_commas(document.num_trained), percent(share));
}

std::vector<StyledText> numbers_as_text(const DataSurvey& survey, int64_t cutoff_len) {
  std::vector<StyledText> texts;
  std::vector<std::vector<std::string>> table = table_of(survey);
  add(texts, aligned(table), Style::kPlain);
  size_t drawn = 0;
  for (const DataSetNumbers& set : survey.sets) {
    if (set.lengths.empty() || set.is_evaluation || drawn++ == kDrawnSets) continue;
    add(texts, fmt::format("\nLengths of {}, in tokens before the cut to cutoff_len:\n", set.name),
        Style::kHeading);
    add(texts, bars_of(set, cutoff_len), Style::kPlain);
  }
  if (survey.packing) add(texts, "\n" + packing_text(*survey.packing) + "\n", Style::kPlain);
  return texts;
}

std::vector<StyledText> warnings_as_text(const std::vector<std::string>& warnings) {
  std::vector<StyledText> texts;
  for (const std::string& warning : warnings) add(texts, warning + "\n", Style::kWarning);
  return texts;
}

std::vector<StyledText> example_as_text(const ShownExample& example) {
  std::vector<StyledText> texts;
  add(texts, "\n" + example.title, Style::kHeading);
  add(texts, fmt::format(" ({}, {})", example.dataset, example.source), Style::kPlain);
  if (example.num_lost > 0) {
    add(texts, fmt::format("; cutoff_len cuts off {}", counted(example.num_lost, "token")),
        Style::kPlain);
  }
  for (const ShownDocument& document : example.documents) {
    add(texts, "\n", Style::kPlain);
    if (!document.name.empty()) add(texts, document.name + ": ", Style::kHeading);
    add(texts, tokens_text(document) + "\n", Style::kFaint);
    for (const TokenPiece& piece : document.pieces) add(texts, piece.text, style_of(piece));
  }
  if (!example.solution.empty()) {
    add(texts, "\nsolution: ", Style::kHeading);
    add(texts, example.solution, Style::kPlain);
  }
  add(texts, "\n", Style::kPlain);
  return texts;
}

}  // namespace longspan
