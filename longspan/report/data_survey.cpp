#include "longspan/report/data_survey.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>
#include <utility>

#include "longspan/base/fnv1a.h"
#include "longspan/registers/stage.h"
#include "longspan/report/survey_warnings.h"
#include "longspan/settings/data_settings.h"
#include "longspan/text/progress_bar.h"
#include "longspan/text/shown.h"

namespace longspan {

namespace {

constexpr size_t kShownGroups = 8, kShownBytes = 160;

class RowHash {
 public:
  void add(std::string_view text) {
    hash_.add(text.size());
    for (const unsigned char byte : text) hash_.add(byte);
  }
  void add(const Message& message) {
    hash_.add(static_cast<uint64_t>(message.role));
    hash_.add(message.is_trained);
    for (const std::string* text :
         {&message.content, &message.thoughts, &message.name, &message.call_id})
      add(*text);
    for (const FunctionCall& call : message.calls) {
      for (const std::string* text : {&call.name, &call.arguments, &call.id}) add(*text);
    }
    for (const MessagePicture& picture : message.pictures) {
      for (const std::string& file : picture.files) add(file);
    }
  }
  uint64_t of(const Conversation& row) {
    for (const Message& message : row.messages) add(message);
    if (row.rejected) add(*row.rejected);
    add(row.tools);
    add(row.documents);
    hash_.add(row.desirable);
    return hash_.value();
  }

 private:
  Fnv1a hash_;
};

/// An example, by the contents of its row.
struct Hashed {
  uint64_t hash;
  int64_t place;  // in the rows of training, and behind them those of evaluation
  auto operator<=>(const Hashed&) const = default;
};

/// The numbers of one part of the examples (training or evaluation).
class SetCounter {
 public:
  /// `first`: the index of the part's first data set in `sets`.
  SetCounter(std::vector<DataSetNumbers>& sets, size_t first, const std::vector<Conversation>& rows)
      : sets_(sets), first_(first), rows_(rows) {}

  DataSetNumbers& of(int64_t row) const { return sets_[first_ + rows_[row].dataset]; }
  void add(const EncodedExamples& encoded) {
    for (const EncodedRow& one : encoded.rows) {
      DataSetNumbers& set = of(one.row);
      const int64_t before = one.lengths[0] + one.lengths[1];
      ++set.num_examples;
      set.num_tokens += one.kept;
      set.num_trained += one.trained;
      set.num_cut += one.kept < before;
      set.num_lost += before - one.kept;
      set.lengths.push_back(std::max(one.lengths[0], one.lengths[1]));
    }
    for (const UnusableRow& bad : encoded.unusable) {
      ++of(bad.row).num_bad;
      of(bad.row).num_nothing_trained += bad.nothing_trained;
    }
  }

 private:
  std::vector<DataSetNumbers>& sets_;
  size_t first_;
  const std::vector<Conversation>& rows_;
};

std::vector<DataSetNumbers> sets_of(const std::vector<ReadDataset>& read, bool is_evaluation) {
  std::vector<DataSetNumbers> sets;
  for (const ReadDataset& one : read) {
    DataSetNumbers& set = sets.emplace_back();
    set.name = one.name;
    set.is_evaluation = is_evaluation;
    // The split of val_size leaves bad rows out before.
    set.num_bad = one.num_bad;
  }
  return sets;
}

/// Counts equal examples. Returns how many evaluation examples are training examples, too.
int64_t count_equal(const SurveyedData& data, const SetCounter& train, const SetCounter& eval,
                    std::vector<EqualExamples>& equal) {
  const int64_t num_train = std::ssize(data.rows.train);
  const auto row_at = [&](int64_t place) -> const Conversation& {
    return place < num_train ? data.rows.train[place] : data.rows.eval[place - num_train];
  };
  std::vector<Hashed> all;
  all.reserve(data.train.rows.size() + data.eval.rows.size());
  const auto add = [&all](const EncodedExamples& encoded, int64_t first) {
    for (const EncodedRow& one : encoded.rows) {
      if (one.kept > 1) all.push_back({0, first + one.row});  // no empty texts
    }
  };
  add(data.train, 0);
  add(data.eval, num_train);
  for (Hashed& one : all) one.hash = RowHash().of(row_at(one.place));
  std::ranges::sort(all);
  int64_t num_leaked = 0;
  for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    int64_t count = 1;
    std::string second;
    const bool in_train = all[begin].place < num_train;
    size_t first = begin;  // of the part
    for (end = begin + 1; end < all.size() && all[end].hash == all[begin].hash; ++end) {
      const int64_t place = all[end].place;
      const bool is_eval = place >= num_train;
      if (is_eval && all[first].place < num_train) {
        first = end;  // the first of its part
        continue;
      }
      DataSetNumbers& set = is_eval ? eval.of(place - num_train) : train.of(place);
      const std::string& source = row_at(place).source;
      if (source == row_at(all[first].place).source) {
        ++set.num_drawn_again;
        continue;
      }
      ++set.num_duplicates;
      ++count;
      if (second.empty()) second = source;
    }
    if (in_train) {
      num_leaked += std::count_if(all.begin() + static_cast<std::ptrdiff_t>(begin),
                                  all.begin() + static_cast<std::ptrdiff_t>(end),
                                  [&](const Hashed& one) { return one.place >= num_train; });
    }
    if (count < 2) continue;
    const Conversation& row = row_at(all[begin].place);
    equal.push_back(
        {count, row.source, second, shortened(row.messages.back().content, kShownBytes)});
    // Keeps the list short while it grows.
    std::ranges::stable_sort(equal, std::greater(), &EqualExamples::count);
    if (equal.size() > kShownGroups) equal.pop_back();
  }
  return num_leaked;
}

PackedRows packed_rows(const SurveyedData& data) {
  PackedRows packed{.report = *data.train.packing};
  const int64_t length = packed.report.row_length;
  for (const Example& example : data.train.examples) {
    int64_t tokens = 0;
    for (const Sample& document : example.documents) tokens += std::ssize(document.input_ids);
    packed.num_half_empty += 2 * tokens < length;
  }
  if (!parts_of(data.stage.rows).text) return packed;
  int64_t begin = 0;
  for (const EncodedRow& one : data.train.rows) {
    const int64_t end = begin + one.lengths[0];
    packed.num_split += end > begin && begin / length != (end - 1) / length;
    begin = end;
  }
  return packed;
}

}  // namespace

double DataSetNumbers::mean() const {
  if (lengths.empty()) return 0;
  double sum = 0;
  for (const int64_t length : lengths) sum += static_cast<double>(length);
  return sum / static_cast<double>(lengths.size());
}

double DataSetNumbers::trained_share() const {
  return num_tokens == 0 ? 0 : static_cast<double>(num_trained) / static_cast<double>(num_tokens);
}

std::string percent(double share) {
  const double number = 100 * share;
  if (number > 0 && number < 0.05) return "< 0.1 %";
  if (number < 100 && number >= 99.95) return "> 99.9 %";
  return fmt::format("{:.1f} %", number);
}

std::vector<LengthBin> length_bins(const std::vector<int64_t>& lengths, int64_t most) {
  if (lengths.empty()) return {};
  const auto place_of = [](int64_t length, double steps) {
    return steps * std::log2(static_cast<double>(length));
  };
  // Steps of a factor of two.
  double steps = 8;
  const auto num_bins = [&] {
    return std::floor(place_of(lengths.back(), steps)) -
           std::floor(place_of(lengths.front(), steps)) + 1;
  };
  while (num_bins() > static_cast<double>(most)) steps /= 2;
  const auto edge = [&](double place) {
    return static_cast<int64_t>(std::ceil(std::exp2(place / steps) - 1e-9));
  };
  std::vector<LengthBin> bins;
  double place = std::floor(place_of(lengths.front(), steps));
  for (auto next = lengths.begin(); next != lengths.end(); ++place) {
    const int64_t begin = edge(place), end = edge(place + 1);
    if (begin == end) continue;
    const auto last = std::lower_bound(next, lengths.end(), end);
    bins.push_back({begin, end, last - next});
    next = last;
  }
  return bins;
}

DataSurvey survey_of(const SurveyedData& data) {
  DataSurvey survey;
  survey.sets = sets_of(data.rows.datasets, /*is_evaluation=*/false);
  const size_t num_train = survey.sets.size();
  // With val_size, evaluation has rows of the training data sets.
  std::vector<DataSetNumbers> eval_sets = sets_of(data.rows.eval_datasets, /*is_evaluation=*/true);
  if (eval_sets.empty() && !data.rows.eval.empty()) {
    eval_sets = sets_of(data.rows.datasets, /*is_evaluation=*/true);
    for (DataSetNumbers& set : eval_sets) set.num_bad = 0;
  }
  std::ranges::move(eval_sets, std::back_inserter(survey.sets));
  SetCounter train(survey.sets, 0, data.rows.train), eval(survey.sets, num_train, data.rows.eval);
  train.add(data.train);
  eval.add(data.eval);
  for (DataSetNumbers& set : survey.sets) std::ranges::sort(set.lengths);
  const int64_t num_leaked = count_equal(data, train, eval, survey.equal);
  if (data.train.packing) survey.packing = packed_rows(data);
  add_cutoffs(data, survey);
  add_warnings(data, num_leaked, survey);
  return survey;
}

std::vector<std::vector<std::string>> table_of(const DataSurvey& survey) {
  std::vector<std::vector<std::string>> table = {{"data set", "examples", "tokens", "trained", "",
                                                  "mean", "median", "longest", "cut", "lost",
                                                  "duplicates", "bad", "untrained"}};
  for (const DataSetNumbers& set : survey.sets) {
    table.push_back({set.label(), with_commas(set.num_examples), with_commas(set.num_tokens),
                     with_commas(set.num_trained), percent(set.trained_share()),
                     with_commas(std::llround(set.mean())), with_commas(set.median()),
                     with_commas(set.longest()), with_commas(set.num_cut),
                     with_commas(set.num_lost), with_commas(set.num_duplicates),
                     with_commas(set.num_bad), with_commas(set.num_nothing_trained)});
  }
  return table;
}

}  // namespace longspan
