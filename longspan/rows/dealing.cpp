#include "longspan/rows/dealing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <stdexcept>

namespace longspan {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// Fractions of a rank's mean work. An example whose time is above the fraction gets more ranks.
/// The first fraction gives each example the fewest ranks that hold it.
constexpr double kFractions[] = {kNever, 1.0, 0.75, 0.5, 0.25};
/// A step that ends this much later may have fewer ranks for each example: estimates are not more
/// exact, and each exchange between ranks that is left out is a gain that they may not know.
constexpr double kTolerance = 1.03;
/// Attempts to give one example more ranks.
constexpr int kAttempts = 64;

struct Job {
  int64_t example, num_tokens;
  size_t degree;  // index in DealingRules::degrees
  double seconds;
};

/// Rows with their tokens and times.
struct Rows {
  std::vector<DealtRow> rows;
  std::vector<int64_t> tokens;
  std::vector<double> seconds;

  size_t add(const RankRange& ranks) {
    rows.push_back({.examples = {}, .ranks = ranks});
    tokens.push_back(0);
    seconds.push_back(0);
    return rows.size() - 1;
  }
  void put(size_t row, const Job& job) {
    rows[row].examples.push_back(job.example);
    tokens[row] += job.num_tokens;
    seconds[row] += job.seconds;
  }
};

/// A dealing with the times of its ranks.
struct Timed {
  Dealing dealing;
  std::vector<double> ends = {};      // of each rank
  std::vector<RankRange> ranks = {};  // of each example
};

/// A turn in which all ranks compute at most one row.
struct Turn {
  double height;  // seconds of its first row, the longest
  std::vector<std::optional<size_t>> row_of_rank;
};

class Dealer {
 public:
  Dealer(const std::vector<std::vector<int64_t>>& examples, const DealingRules& rules)
      : examples_(examples), rules_(rules), num_ranks_(rules.ranks.num_ranks) {
    for (const int degree : rules.degrees) ranges_.push_back(rules.ranks.ranges(degree));
    double work = 0;
    for (const std::vector<int64_t>& lengths : examples) {
      num_tokens_.push_back(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
      const size_t fewest = fewest_ranks(num_tokens_.back());
      work += seconds_of(num_tokens_.size() - 1, fewest) * rules.degrees[fewest];
    }
    if (!std::isfinite(work)) throw std::logic_error("the estimated work of a row is not finite");
    mean_ = work / num_ranks_;
  }

  /// Returns the dealing with the degrees of a fraction, or a better one with more ranks for some
  /// examples that end last.
  Timed with(double fraction) const {
    std::vector<Job> jobs = jobs_of(fraction);
    Timed best = dealt(jobs);
    for (int attempt = 0; attempt < kAttempts && best.dealing.end > kTolerance * mean_; ++attempt) {
      const auto last = static_cast<int>(std::ranges::max_element(best.ends) - best.ends.begin());
      Job* longest = nullptr;
      for (Job& job : jobs) {
        const bool widens = job.degree + 1 < rules_.degrees.size();
        if (!widens || !best.ranks[job.example].holds(last)) continue;
        if (longest == nullptr || job.seconds > longest->seconds) longest = &job;
      }
      if (longest == nullptr) break;
      const Job before = *longest;
      longest->degree += 1;
      longest->seconds = seconds_of(before.example, longest->degree);
      Timed next = dealt(jobs);
      if (next.dealing.end >= best.dealing.end) break;
      best = std::move(next);
    }
    return best;
  }

 private:
  double seconds_of(int64_t example, size_t degree) const {
    double seconds = 0;
    for (const int64_t length : examples_[example]) {
      seconds += rules_.seconds(length, rules_.degrees[degree]);
    }
    return seconds;
  }

  bool hold(int64_t tokens, int degree) const {
    return (tokens + degree - 1) / degree <= rules_.tokens_per_rank;
  }

  /// Returns the index of the smallest degree whose ranks hold the tokens; of the largest degree if
  /// none does.
  size_t fewest_ranks(int64_t tokens) const {
    size_t i = 0;
    while (i + 1 < rules_.degrees.size() && !hold(tokens, rules_.degrees[i])) ++i;
    return i;
  }

  std::vector<Job> jobs_of(double fraction) const {
    std::vector<Job> jobs;
    for (int64_t i = 0; i < std::ssize(examples_); ++i) {
      Job best{.example = i, .num_tokens = num_tokens_[i], .degree = 0, .seconds = kNever};
      for (size_t d = fewest_ranks(num_tokens_[i]); d < rules_.degrees.size(); ++d) {
        const double seconds = seconds_of(i, d);
        if (seconds < best.seconds) {
          best.degree = d;
          best.seconds = seconds;
        }
        if (best.seconds <= fraction * mean_) break;
      }
      jobs.push_back(best);
    }
    return jobs;
  }

  Timed dealt(std::vector<Job> jobs) const {
    std::ranges::sort(jobs, [this](const Job& a, const Job& b) {
      if (!rules_.together && a.degree != b.degree) return a.degree > b.degree;
      return a.seconds != b.seconds ? a.seconds > b.seconds : a.example < b.example;
    });
    Timed timed{.dealing = {},
                .ends = std::vector<double>(num_ranks_, 0.0),
                .ranks = std::vector<RankRange>(examples_.size())};
    Rows rows = rules_.together ? in_turns(jobs) : in_lists(jobs);
    timed.dealing.seconds.assign(num_ranks_, 0.0);
    for (size_t i = 0; i < rows.rows.size(); ++i) {
      const RankRange& ranks = rows.rows[i].ranks;
      for (const int64_t example : rows.rows[i].examples) timed.ranks[example] = ranks;
      const auto begin = timed.ends.begin() + ranks.first;
      std::fill_n(begin, ranks.count,
                  *std::max_element(begin, begin + ranks.count) + rows.seconds[i]);
      for (int k = 0; k < ranks.count; ++k) {
        timed.dealing.seconds[ranks.first + k] += rows.seconds[i];
      }
    }
    timed.dealing.rows = std::move(rows.rows);
    timed.dealing.end = rules_.together ? end_of_turns(timed.dealing, rows.seconds)
                                        : *std::ranges::max_element(timed.ends);
    return timed;
  }

  /// Each job goes to the ranks that are free first.
  Rows in_lists(const std::vector<Job>& jobs) const {
    Rows rows;
    std::vector<double> free(num_ranks_, 0.0);
    std::map<RankRange, size_t> open;  // the last row of the ranks
    for (const Job& job : jobs) {
      const RankRange* ranks = nullptr;
      double earliest = kNever;
      for (const RankRange& range : ranges_[job.degree]) {
        const auto begin = free.begin() + range.first;
        const double at = *std::max_element(begin, begin + range.count);
        if (at >= earliest) continue;
        ranks = &range;
        earliest = at;
      }
      std::fill_n(free.begin() + ranks->first, ranks->count, earliest + job.seconds);
      const auto [row, is_new] = open.try_emplace(*ranks, 0);
      if (is_new || !has_room(rows, row->second, job)) row->second = rows.add(*ranks);
      rows.put(row->second, job);
    }
    return rows;
  }

  /// Each job goes to the first turn that has room for it. The rows are in the order of turns.
  Rows in_turns(const std::vector<Job>& jobs) const {
    Rows rows;
    std::vector<Turn> turns;
    for (const Job& job : jobs) {
      size_t turn = 0;
      while (turn < turns.size() && !fits(rows, turns[turn], job)) ++turn;
      if (turn < turns.size()) continue;
      turns.push_back({job.seconds, std::vector<std::optional<size_t>>(num_ranks_)});
      fits(rows, turns.back(), job);
    }
    Rows sorted;
    for (const Turn& turn : turns) {
      for (int rank = 0; rank < num_ranks_; ++rank) {
        const std::optional<size_t> row = turn.row_of_rank[rank];
        if (!row || rows.rows[*row].ranks.first != rank) continue;
        sorted.rows.push_back(std::move(rows.rows[*row]));
        sorted.tokens.push_back(rows.tokens[*row]);
        sorted.seconds.push_back(rows.seconds[*row]);
      }
    }
    return sorted;
  }

  /// Puts the job into the turn, in a row of its own or with others, and returns true; false if the
  /// turn has no room.
  bool fits(Rows& rows, Turn& turn, const Job& job) const {
    for (const RankRange& range : ranges_[job.degree]) {
      const std::optional<size_t> row = turn.row_of_rank[range.first];
      if (!row) {
        const auto begin = turn.row_of_rank.begin() + range.first;
        if (std::any_of(begin, begin + range.count, [](const auto& r) { return r.has_value(); })) {
          continue;
        }
        std::fill_n(begin, range.count, rows.add(range));
        rows.put(*turn.row_of_rank[range.first], job);
        return true;
      }
      if (rows.rows[*row].ranks != range || !has_room(rows, *row, job)) continue;
      if (rows.seconds[*row] + job.seconds > turn.height) continue;
      rows.put(*row, job);
      return true;
    }
    return false;
  }

  bool has_room(const Rows& rows, size_t row, const Job& job) const {
    return std::ssize(rows.rows[row].examples) < rules_.examples_per_row &&
           hold(rows.tokens[row] + job.num_tokens, rows.rows[row].ranks.count);
  }

  double end_of_turns(const Dealing& dealing, const std::vector<double>& seconds) const {
    std::vector<double> heights;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      const std::vector<std::optional<size_t>> turns = turns_of(dealing, rank, true);
      heights.resize(turns.size(), 0.0);
      for (size_t i = 0; i < turns.size(); ++i) {
        if (turns[i]) heights[i] = std::max(heights[i], seconds[*turns[i]]);
      }
    }
    return std::accumulate(heights.begin(), heights.end(), 0.0);
  }

  const std::vector<std::vector<int64_t>>& examples_;
  const DealingRules& rules_;
  int num_ranks_;
  std::vector<std::vector<RankRange>> ranges_;  // by the index of the degree
  std::vector<int64_t> num_tokens_;
  double mean_ = 0;  // seconds of a rank if all examples had the fewest ranks that hold them
};

}  // namespace

std::vector<RankRange> RanksOfRun::ranges(int degree) const {
  if (degree == num_ranks) return {{.first = 0, .count = degree}};
  const int unit = degree <= ranks_per_machine ? 1 : ranks_per_machine;
  if (degree % unit != 0) return {};
  // Ranks within each machine, or machines within the run.
  const int size = unit == 1 ? ranks_per_machine : num_ranks;
  std::vector<RankRange> found;
  for (int begin = 0; begin < num_ranks; begin += size) {
    const int length = std::min(size, num_ranks - begin);
    for (int first = 0; first + degree <= length; first += unit) {
      if (first % degree != 0 && first + degree != length) continue;
      found.push_back({.first = begin + first, .count = degree});
    }
  }
  return found;
}

double Dealing::imbalance() const {
  const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  return sum == 0 ? 1.0 : end * static_cast<double>(seconds.size()) / sum;
}

Dealing deal(const std::vector<std::vector<int64_t>>& examples, const DealingRules& rules) {
  const Dealer dealer(examples, rules);
  std::vector<Dealing> dealings;
  double earliest = kNever;
  for (const double fraction : kFractions) {
    dealings.push_back(dealer.with(fraction).dealing);
    earliest = std::min(earliest, dealings.back().end);
  }
  return *std::ranges::find_if(
      dealings, [&](const Dealing& dealing) { return dealing.end <= kTolerance * earliest; });
}

std::vector<std::optional<size_t>> turns_of(const Dealing& dealing, int rank, bool together) {
  std::vector<std::optional<size_t>> turns;
  std::vector<size_t> next(dealing.seconds.size(), 0);  // turn of each rank
  for (size_t i = 0; i < dealing.rows.size(); ++i) {
    const RankRange& ranks = dealing.rows[i].ranks;
    const auto begin = next.begin() + ranks.first;
    const size_t turn = *std::max_element(begin, begin + ranks.count);
    std::fill_n(begin, ranks.count, turn + 1);
    if (!ranks.holds(rank)) continue;
    if (together) turns.resize(turn);
    turns.push_back(i);
  }
  if (together && !next.empty()) turns.resize(*std::ranges::max_element(next));
  return turns;
}

}  // namespace longspan
