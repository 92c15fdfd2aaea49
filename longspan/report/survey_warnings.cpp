#include "longspan/report/survey_warnings.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "longspan/registers/stage.h"
#include "longspan/settings/data_settings.h"
#include "longspan/text/counted.h"
#include "longspan/text/progress_bar.h"

namespace longspan {

namespace {

/// The lengths of all documents of the training examples, with sums, to compute the effect of any
/// cutoff_len.
class Documents {
 public:
  explicit Documents(const std::vector<EncodedRow>& rows) {
    for (const EncodedRow& row : rows) {
      longest_.push_back(std::max(row.lengths[0], row.lengths[1]));
      for (const int64_t length : row.lengths) {
        if (length > 0) lengths_.push_back(length);
      }
    }
    std::ranges::sort(longest_);
    std::ranges::sort(lengths_);
    sums_.push_back(0);
    for (const int64_t length : lengths_) {
      sums_.push_back(sums_.back() + static_cast<double>(length));
    }
  }

  bool empty() const { return lengths_.empty(); }
  int64_t longest() const { return lengths_.back(); }
  int64_t num_cut(int64_t cutoff_len) const {
    return longest_.end() - std::ranges::upper_bound(longest_, cutoff_len);
  }
  double kept(int64_t cutoff_len) const {
    const auto above = std::ranges::upper_bound(lengths_, cutoff_len);
    const double whole = sums_[above - lengths_.begin()];
    return (whole + static_cast<double>(lengths_.end() - above) * static_cast<double>(cutoff_len)) /
           sums_.back();
  }
  /// Returns the smallest cutoff_len that keeps the share.
  int64_t keeping(double share) const {
    int64_t low = 1, high = longest();
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (kept(middle) >= share) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return high;
  }

 private:
  std::vector<int64_t> longest_, lengths_;  // of examples, of documents; ascending
  std::vector<double> sums_;                // sums_[i]: of the i shortest documents
};

/// Rounds up to a number that people write.
int64_t rounded_up(int64_t length) {
  const int64_t step = length > 4096 ? 1024 : length > 512 ? 128 : 16;
  return (length + step - 1) / step * step;
}

bool cuts_rows(const SurveyedData& data) {
  return !(parts_of(data.stage.rows).text && data.train.packing);
}

std::string cut_warning(const SurveyedData& data) {
  const Documents documents(data.train.rows);
  const int64_t cutoff_len = data.config.cutoff_len;
  if (documents.empty() || documents.longest() <= cutoff_len || !cuts_rows(data)) return "";
  const double kept = documents.kept(cutoff_len);
  std::string text =
      fmt::format("{} of the tokens lie beyond cutoff_len {} and are lost, in {} of {} examples.",
                  percent(1 - kept), cutoff_len, with_commas(documents.num_cut(cutoff_len)),
                  with_commas(std::ssize(data.train.rows)));
  const int64_t most = rounded_up(documents.keeping(0.99)), all = rounded_up(documents.longest());
  if (kept < 0.99 && most < all) {
    text += fmt::format(" cutoff_len: {} would keep {} of the tokens, and", most,
                        percent(documents.kept(most)));
  }
  return text + fmt::format(" cutoff_len: {} would keep all.", all);
}

}  // namespace

void add_cutoffs(const SurveyedData& data, DataSurvey& survey) {
  const Documents documents(data.train.rows);
  if (documents.empty() || !cuts_rows(data)) return;
  std::vector<int64_t> lengths = {data.config.cutoff_len, documents.longest()};
  for (int64_t length = 256; length < documents.longest(); length *= 2) lengths.push_back(length);
  std::ranges::sort(lengths);
  const auto [repeated, end] = std::ranges::unique(lengths);
  lengths.erase(repeated, end);
  for (const int64_t length : lengths) {
    survey.cutoffs.push_back({length, documents.num_cut(length), documents.kept(length)});
  }
}

void add_warnings(const SurveyedData& data, int64_t num_leaked, DataSurvey& survey) {
  std::vector<std::string>& warnings = survey.warnings;
  const bool trains_rows = data.stage.rollouts == RolloutUse::kNone;
  for (const DataSetNumbers& set : survey.sets) {
    if (set.num_nothing_trained > 0) {
      warnings.push_back(fmt::format("No token is trained in {} of {}.",
                                     counted(set.num_nothing_trained, "example"), set.name));
    }
    if (set.num_bad > 0) {
      warnings.push_back(
          fmt::format("{} of {} cannot be used. {}", counted(set.num_bad, "row"), set.name,
                      data.stops_at_bad_rows
                          ? "Training stops there: correct the rows, or set on_bad_row: skip."
                          : "Training leaves them out (on_bad_row: skip)."));
    }
    const bool trains_texts = parts_of(data.stage.rows).text;
    if (trains_rows && !trains_texts && !set.is_evaluation && set.num_examples > 0) {
      // A first token has no label that counts.
      if (set.num_trained >= set.num_tokens - 2 * set.num_examples) {
        warnings.push_back(
            fmt::format("Every token of {} is trained, the prompts too{}.", set.name,
                        data.config.train_on_prompt ? " (train_on_prompt: true)" : ""));
      } else if (data.config.train_on_prompt) {
        warnings.push_back(
            fmt::format("The prompts of {} are trained, too (train_on_prompt: true).", set.name));
      } else if (set.trained_share() < 0.01) {
        warnings.push_back(fmt::format("Only {} of the tokens of {} are trained.",
                                       percent(set.trained_share()), set.name));
      }
    }
    if (set.num_duplicates > 0) {
      const bool one = set.num_duplicates == 1;
      warnings.push_back(fmt::format("{} of {} {} of {}.", counted(set.num_duplicates, "example"),
                                     set.label(),
                                     one ? "is an exact duplicate" : "are exact duplicates",
                                     one ? "an earlier example" : "earlier examples"));
    }
  }
  if (num_leaked > 0) {
    warnings.push_back(
        fmt::format("{} of the evaluation {} trained, too, which lowers the evaluation's loss.",
                    counted(num_leaked, "example"), num_leaked == 1 ? "is" : "are"));
  }
  if (const std::string cut = cut_warning(data); !cut.empty()) warnings.push_back(cut);
}

}  // namespace longspan
