#include "longspan/report/data_page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "longspan/report/data_text.h"
#include "longspan/report/page_style.h"
#include "longspan/text/counted.h"
#include "longspan/text/progress_bar.h"
#include "longspan/text/shown.h"

namespace longspan {

namespace {

constexpr int64_t kPageBins = 32;
constexpr size_t kPageSets = 24;
constexpr double kWidth = 640, kHeight = 150, kBottom = 34, kTop = 14, kLeft = 8;

std::string section(const std::string& id, const std::string& title, const std::string& content) {
  return fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n{}</section>\n", id, title, content);
}

std::string table_as_html(const std::vector<std::vector<std::string>>& table) {
  std::string html = "<div class=\"wide\"><table>\n";
  for (size_t k = 0; k < table.size(); ++k) {
    html += k == 0 ? "<thead><tr>" : "<tr>";
    for (size_t i = 0; i < table[k].size(); ++i) {
      const char* cell = k == 0 || i == 0 ? "th" : "td";
      html += fmt::format(
          "<{}{}>{}</{}>", cell,
          i == 0 || k == 0 ? fmt::format(" scope=\"{}\"", k == 0 ? "col" : "row") : std::string(),
          escaped_html(table[k][i]), cell);
    }
    html += k == 0 ? "</tr></thead>\n<tbody>\n" : "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

/// The axis of lengths, which is logarithmic.
struct Axis {
  double begin, end;  // logarithms
  double at(int64_t length) const {
    const double place = (std::log2(static_cast<double>(length)) - begin) / (end - begin);
    return kLeft + place * (kWidth - 2 * kLeft);
  }
};

std::string histogram(const DataSetNumbers& set, int64_t cutoff_len) {
  const std::vector<LengthBin> bins = length_bins(set.lengths, kPageBins);
  int64_t most = 1;
  for (const LengthBin& bin : bins) most = std::max(most, bin.count);
  const Axis axis{std::log2(static_cast<double>(bins.front().begin)),
                  std::log2(static_cast<double>(bins.back().end))};
  const double floor = kHeight - kBottom;
  const std::string label = fmt::format("Lengths of {}: {}, median {}, longest {}", set.label(),
                                        counted(set.num_examples, "example"),
                                        with_commas(set.median()), with_commas(set.longest()));
  std::string svg = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n",
                                kWidth, kHeight, escaped_html(label));
  for (const auto& [begin, end, count] : bins) {
    if (count == 0) continue;
    const double height =
        std::max(1.5, static_cast<double>(count) / static_cast<double>(most) * (floor - kTop));
    const double x = axis.at(begin);
    svg += fmt::format(
        "<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\">"
        "<title>{} to {} tokens: {}</title></rect>\n",
        begin >= cutoff_len ? "bar beyond" : "bar", x + 0.5, floor - height,
        std::max(1.0, axis.at(end) - x - 1), height, with_commas(begin), with_commas(end - 1),
        counted(count, "example"));
  }
  svg += fmt::format("<line class=\"axis\" x1=\"{0}\" y1=\"{1}\" x2=\"{2}\" y2=\"{1}\"/>\n", kLeft,
                     floor, kWidth - kLeft);
  // Labels at powers of two, far enough from each other.
  double last = -100;
  for (int64_t length = 1; length <= bins.back().end; length *= 2) {
    if (length < bins.front().begin || axis.at(length) < last + 48) continue;
    last = axis.at(length);
    const char* anchor = last < 24 ? "start" : last > kWidth - 24 ? "end" : "middle";
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"{}\">{}</text>\n", last,
                       floor + 15, anchor, with_commas(length));
  }
  if (cutoff_len >= bins.front().begin && cutoff_len < bins.back().end) {
    const double x = axis.at(cutoff_len);
    svg += fmt::format(
        "<line class=\"cutoff\" x1=\"{0:.1f}\" y1=\"2\" x2=\"{0:.1f}\" y2=\"{1}\"/>\n"
        "<text class=\"cutoff\" x=\"{2:.1f}\" y=\"11\" text-anchor=\"{3}\">cutoff_len "
        "{4}</text>\n",
        x, floor, x > kWidth / 2 ? x - 4 : x + 4, x > kWidth / 2 ? "end" : "start",
        with_commas(cutoff_len));
  }
  return fmt::format("<figure>{}</svg><figcaption>{}</figcaption></figure>\n", svg,
                     escaped_html(label));
}

std::string lengths_section(const DataPage& page) {
  std::string html =
      "<p>The length of an example is the number of tokens of its longest document "
      "before the cut to cutoff_len. The axis is logarithmic.</p>\n";
  size_t drawn = 0;
  for (const DataSetNumbers& set : page.survey.sets) {
    if (set.lengths.empty()) continue;
    if (drawn++ == kPageSets) {
      return html + fmt::format("<p>The first {} data sets are drawn.</p>\n", kPageSets);
    }
    html += histogram(set, page.cutoff_len);
  }
  return html;
}

std::string trained_section(const DataPage& page) {
  std::string html = "<p>Tokens after the cut. The loss sees the trained ones.</p>\n";
  for (const DataSetNumbers& set : page.survey.sets) {
    const double width = kWidth * std::clamp(set.trained_share(), 0.0, 1.0);
    html += fmt::format(
        "<figure><svg viewBox=\"0 0 {0} 16\" role=\"img\" aria-label=\"{1} trained\">"
        "<rect class=\"rest\" width=\"{0}\" height=\"16\"/>"
        "<rect class=\"trained\" width=\"{2:.1f}\" height=\"16\"/></svg>"
        "<figcaption>{3}: {4} of {5} trained ({1})</figcaption></figure>\n",
        kWidth, escaped_html(percent(set.trained_share())), width, escaped_html(set.label()),
        with_commas(set.num_trained), counted(set.num_tokens, "token"));
  }
  return html;
}

std::string truncation_section(const DataPage& page) {
  if (page.survey.cutoffs.empty()) return "<p>Packing cuts texts into blocks and loses none.</p>\n";
  std::vector<std::vector<std::string>> table = {{"cutoff_len", "examples cut", "tokens kept"}};
  for (const auto& [length, num_cut, kept] : page.survey.cutoffs) {
    table.push_back({with_commas(length) + (length == page.cutoff_len ? " (this run)" : ""),
                     with_commas(num_cut), percent(kept)});
  }
  return table_as_html(table);
}

std::string duplicates_section(const DataPage& page) {
  int64_t duplicates = 0, drawn_again = 0;
  for (const DataSetNumbers& set : page.survey.sets) {
    duplicates += set.num_duplicates;
    drawn_again += set.num_drawn_again;
  }
  std::string html = fmt::format("<p>{} an earlier one exactly.{}</p>\n",
                                 duplicates == 0   ? "No example equals"
                                 : duplicates == 1 ? "1 example equals"
                                                   : with_commas(duplicates) + " examples equal",
                                 drawn_again == 0 ? std::string()
                                                  : fmt::format(" {} drawn again on purpose "
                                                                "(mix_strategy, num_samples).",
                                                                counted(drawn_again, "example")));
  if (page.survey.equal.empty()) return html;
  std::vector<std::vector<std::string>> table = {{"count", "first", "next", "last message"}};
  for (const auto& [count, first, second, text] : page.survey.equal) {
    table.push_back({with_commas(count), first, second, text});
  }
  return html + "<div class=\"texts\">" + table_as_html(table) + "</div>";
}

std::string pieces_as_html(const std::vector<TokenPiece>& pieces) {
  std::string html;
  bool in_trained = false;
  for (const TokenPiece& piece : pieces) {
    if (piece.is_trained != in_trained) html += in_trained ? "</mark>" : "<mark>";
    in_trained = piece.is_trained;
    const std::string text = escaped_html(piece.text);
    switch (piece.kind) {
      case TokenPiece::Kind::kGap:
        html += fmt::format("<span class=\"gap\">{}</span>", text);
        continue;
      case TokenPiece::Kind::kPicture:
        html += fmt::format("<b>{}</b>", text);
        continue;
      case TokenPiece::Kind::kText:
      case TokenPiece::Kind::kSpecial:
        break;
    }
    const char* tag = piece.kind == TokenPiece::Kind::kSpecial ? "b" : "i";
    html += fmt::format("<{} title=\"{}\"{}>{}</{}>", tag, fmt::join(piece.ids, " "),
                        piece.text.starts_with('\n') ? " class=\"n\"" : "", text, tag);
  }
  return in_trained ? html + "</mark>" : html;
}

std::string example_as_html(const ShownExample& example, bool is_open) {
  std::string html = fmt::format(
      "<details{}>\n<summary>{} <span class=\"faint\">{}, {}{}</span></summary>\n",
      is_open ? " open" : "", escaped_html(example.title), escaped_html(example.dataset),
      escaped_html(example.source), example.why.empty() ? "" : ": " + escaped_html(example.why));
  if (example.num_lost > 0) {
    html += fmt::format("<p class=\"warning\">cutoff_len cuts off {}.</p>\n",
                        counted(example.num_lost, "token"));
  }
  for (const ShownDocument& document : example.documents) {
    html += fmt::format(
        "<p class=\"faint\">{}{}</p>\n<pre class=\"tokens\">\n{}</pre>\n",
        document.name.empty() ? "" : "<strong>" + escaped_html(document.name) + "</strong>: ",
        escaped_html(tokens_text(document)), pieces_as_html(document.pieces));
  }
  if (!example.solution.empty()) {
    html += fmt::format("<p><strong>solution</strong></p>\n<pre class=\"tokens\">\n{}</pre>\n",
                        escaped_html(example.solution));
  }
  return html + "</details>\n";
}

std::string examples_section(const DataPage& page) {
  std::string html = fmt::format(
      "<p class=\"legend\"><mark>trained</mark> not trained <b>special</b> "
      "<span class=\"faint\">The id of a token appears on hover. {} of {} shown.</span></p>\n",
      with_commas(std::ssize(page.examples)), counted(page.num_examples, "example"));
  for (size_t i = 0; i < page.examples.size(); ++i) {
    html += example_as_html(page.examples[i], /*is_open=*/i < 2);
  }
  return html;
}

std::string list_of(const std::vector<std::string>& lines) {
  std::string html = "<ul>\n";
  for (const std::string& line : lines) html += fmt::format("<li>{}</li>\n", escaped_html(line));
  return html + "</ul>\n";
}

}  // namespace

std::string escaped_html(std::string_view text) {
  std::string html;
  for (const char letter : shown(text)) {
    switch (letter) {
      case '&':
        html += "&amp;";
        break;
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '"':
        html += "&quot;";
        break;
      case '\'':
        html += "&#39;";
        break;
      default:
        html += letter;
    }
  }
  return html;
}

std::string html_of(const DataPage& page) {
  std::string facts;
  for (const auto& [name, value] : page.facts) {
    facts +=
        fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", escaped_html(name), escaped_html(value));
  }
  std::string html = fmt::format(
      "{}<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; base-uri 'none'; form-action 'none'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"referrer\" content=\"no-referrer\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<title>Data of a run</title>\n<style>\n{}</style>\n</head>\n<body>\n<header>\n"
      "<h1>Data of a run</h1>\n<dl>\n{}</dl>\n</header>\n<main>\n",
      kPageBegin, kPageStyle, facts);
  if (!page.survey.warnings.empty()) {
    html += section("warnings", "Warnings",
                    "<div class=\"box\">" + list_of(page.survey.warnings) + "</div>\n");
  }
  html += section("data-sets", "Data sets", table_as_html(table_of(page.survey)));
  html += section("examples", "Examples", examples_section(page));
  html += section("trained", "Trained tokens", trained_section(page));
  html += section("lengths", "Lengths", lengths_section(page));
  html += section("truncation", "Truncation", truncation_section(page));
  if (page.survey.packing) {
    html += section("packing", "Packing",
                    "<p>" + escaped_html(packing_text(*page.survey.packing)) + "</p>\n");
  }
  html += section("duplicates", "Duplicates", duplicates_section(page));
  if (!page.notes.empty()) {
    html += section("notes", "Lines that training prints", list_of(page.notes));
  }
  return html + "</main>\n</body>\n</html>\n";
}

}  // namespace longspan
