#include "longspan/report/metrics_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/files/atomic_file.h"

namespace longspan {
namespace {

std::string metric_of(std::string_view key) {
  std::string name = "longspan_";
  for (const char c : key) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

std::string label_of(std::string_view text) {
  std::string label;
  for (const char c : text) {
    if (c == '\\' || c == '"') label += '\\';
    label += c == '\n' ? ' ' : c;
  }
  return label;
}

void add_ranks(const std::vector<RankTime>& ranks, const char* name, const char* help,
               double RankTime::* seconds, std::string& text) {
  if (ranks.empty()) return;
  text += fmt::format("# HELP {0} {1}\n# TYPE {0} gauge\n", name, help);
  for (const RankTime& rank : ranks) {
    text += fmt::format("{}{{rank=\"{}\",host=\"{}\"}} {}\n", name, rank.rank, label_of(rank.host),
                        rank.*seconds);
  }
}

}  // namespace

std::string MetricsFile::add(const Logged& logged) {
  const Progress& progress = logged.progress;
  for (const auto& [key, value] : logged.entry) {
    numbers_[metric_of(key)] = std::visit([](auto n) { return static_cast<double>(n); }, value);
  }
  numbers_["longspan_total_steps"] = static_cast<double>(progress.total_steps);
  numbers_["longspan_tokens"] = static_cast<double>(progress.num_tokens);
  numbers_["longspan_tokens_per_second"] = progress.tokens_per_second();
  numbers_["longspan_elapsed_seconds"] = progress.elapsed_seconds;
  if (!logged.ranks.empty()) ranks_ = logged.ranks;
  std::string text;
  for (const auto& [name, number] : numbers_) {
    text += fmt::format("# TYPE {0} gauge\n{0} {1}\n", name, number);
  }
  add_ranks(ranks_, "longspan_rank_step_seconds",
            "Mean seconds of a rank's step since the log entry before.", &RankTime::step, text);
  add_ranks(ranks_, "longspan_rank_wait_seconds",
            "Seconds of the mean step in which the rank waits for other ranks.", &RankTime::waited,
            text);
  try {
    write_file_atomically(path_, text);
    failing_ = false;
  } catch (const UserError& error) {
    if (!std::exchange(failing_, true)) return error.what();
  }
  return "";
}

}  // namespace longspan
