#include "longspan/rows/dealing.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

namespace longspan {
namespace {

/// Fractions of a rank's mean work. An example whose time is above the fraction gets more ranks.
/// The first fraction gives each example the fewest ranks that hold it.
constexpr double kFractions[] = {std::numeric_limits<double>::infinity(), 1.0, 0.75, 0.5, 0.25};
/// Attempts to give one example more ranks.
constexpr int kAttempts = 64;

struct Job {
  int64_t example, num_tokens;
  size_t degree;  // index in DealingRules::degrees
  double seconds;
};

/// A dealing, and the time at which the last rank is free.
struct Timed {
  Dealing dealing;
  double end = std::numeric_limits<double>::infinity();
  std::vector<double> ends;      // of each rank
  std::vector<RankRange> ranks;  // of each example
};

class Dealer {
 public:
  Dealer(const std::vector<std::vector<int64_t>>& examples, const DealingRules& rules)
      : examples_(examples), rules_(rules) {
    double work = 0;
    for (const std::vector<int64_t>& lengths : examples) {
      const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
      num_tokens_.push_back(tokens);
      const int fewest = rules.degrees[fewest_ranks(tokens)];
      work += seconds_of(lengths, fewest) * fewest;
    }
    mean_ = work / rules.num_ranks;
  }

  /// Returns the dealing with the degrees of a fraction, or a better one with more ranks for some
  /// examples that end last.
  Timed with(double fraction) const {
    std::vector<Job> jobs = jobs_of(fraction);
    Timed best = dealt(jobs);
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      const int last = static_cast<int>(std::ranges::max_element(best.ends) - best.ends.begin());
      Job* longest = nullptr;
      for (Job& job : jobs) {
        if (!best.ranks[job.example].holds(last) || job.degree + 1 == rules_.degrees.size())
          continue;
        if (longest == nullptr || job.seconds > longest->seconds) longest = &job;
      }
      if (longest == nullptr) break;
      const Job before = *longest;
      longest->degree += 1;
      longest->seconds = seconds_of(examples_[before.example], rules_.degrees[longest->degree]);
      Timed next = dealt(jobs);
      if (next.end >= best.end) {
        *longest = before;
        break;
      }
      best = std::move(next);
    }
    return best;
  }

 private:
  Timed dealt(std::vector<Job> jobs) const {
    std::ranges::sort(jobs, [](const Job& a, const Job& b) {
      if (a.degree != b.degree) return a.degree > b.degree;
      return a.seconds != b.seconds ? a.seconds > b.seconds : a.example < b.example;
    });
    Timed timed{.dealing = {},
                .ends = std::vector<double>(rules_.num_ranks, 0.0),
                .ranks = std::vector<RankRange>(examples_.size())};
    std::vector<DealtRow>& rows = timed.dealing.rows;
    timed.dealing.seconds.assign(rules_.num_ranks, 0.0);
    std::map<RankRange, size_t> open;  // the last row of the ranks
    std::vector<int64_t> tokens;       // of each row
    for (const Job& job : jobs) {
      const int degree = rules_.degrees[job.degree];
      const RankRange ranks{first_free(timed.ends, degree), degree};
      const auto begin = timed.ends.begin() + ranks.first;
      const double done = *std::max_element(begin, begin + degree) + job.seconds;
      std::fill(begin, begin + degree, done);
      for (int i = 0; i < degree; ++i) timed.dealing.seconds[ranks.first + i] += job.seconds;
      timed.ranks[job.example] = ranks;
      const auto [row, is_new] = open.try_emplace(ranks, rows.size());
      if (!is_new && !has_room(rows[row->second], tokens[row->second], job)) {
        row->second = rows.size();
      }
      if (row->second == rows.size()) {
        rows.push_back({.examples = {}, .ranks = ranks});
        tokens.push_back(0);
      }
      rows[row->second].examples.push_back(job.example);
      tokens[row->second] += job.num_tokens;
    }
    timed.end = *std::ranges::max_element(timed.ends);
    return timed;
  }

  double seconds_of(const std::vector<int64_t>& lengths, int degree) const {
    double seconds = 0;
    for (const int64_t length : lengths) seconds += rules_.seconds(length, degree);
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
    for (size_t i = 0; i < examples_.size(); ++i) {
      Job best{.example = static_cast<int64_t>(i),
               .num_tokens = num_tokens_[i],
               .degree = 0,
               .seconds = std::numeric_limits<double>::infinity()};
      for (size_t d = fewest_ranks(num_tokens_[i]); d < rules_.degrees.size(); ++d) {
        const double seconds = seconds_of(examples_[i], rules_.degrees[d]);
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

  /// Returns the first of `degree` ranks that are all free earliest.
  int first_free(const std::vector<double>& end, int degree) const {
    int best = 0;
    double earliest = std::numeric_limits<double>::infinity();
    for (int first = 0; first + degree <= rules_.num_ranks; ++first) {
      const bool ends_last = !rules_.aligned && first + degree == rules_.num_ranks;
      if (first % degree != 0 && !ends_last) continue;
      const double free = *std::max_element(end.begin() + first, end.begin() + first + degree);
      if (free < earliest) {
        best = first;
        earliest = free;
      }
    }
    return best;
  }

  bool has_room(const DealtRow& row, int64_t num_tokens, const Job& job) const {
    return std::ssize(row.examples) < rules_.examples_per_row &&
           hold(num_tokens + job.num_tokens, row.ranks.count);
  }

  const std::vector<std::vector<int64_t>>& examples_;
  const DealingRules& rules_;
  std::vector<int64_t> num_tokens_;
  double mean_ = 0;  // seconds of a rank if all examples had the fewest ranks that hold them
};

}  // namespace

double Dealing::imbalance() const {
  const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  return sum == 0 ? 1.0
                  : *std::ranges::max_element(seconds) * static_cast<double>(seconds.size()) / sum;
}

Dealing deal(const std::vector<std::vector<int64_t>>& examples, const DealingRules& rules) {
  const Dealer dealer(examples, rules);
  Timed best;
  for (const double fraction : kFractions) {
    Timed timed = dealer.with(fraction);
    if (timed.end < best.end) best = std::move(timed);
  }
  return best.dealing;
}

std::vector<std::optional<size_t>> turns_of(const Dealing& dealing, int rank, bool together) {
  std::vector<std::optional<size_t>> turns;
  std::vector<size_t> next(dealing.seconds.size(), 0);  // turn of each rank
  for (size_t i = 0; i < dealing.rows.size(); ++i) {
    const RankRange& ranks = dealing.rows[i].ranks;
    const auto begin = next.begin() + ranks.first;
    const size_t turn = *std::max_element(begin, begin + ranks.count);
    std::fill(begin, begin + ranks.count, turn + 1);
    if (!ranks.holds(rank)) continue;
    if (together) turns.resize(turn);
    turns.push_back(i);
  }
  if (together && !next.empty()) turns.resize(*std::ranges::max_element(next));
  return turns;
}

}  // namespace longspan
