// Dealing: which ranks compute which examples of a step, so that all ranks have equal work. No
// torch.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace longspan {

/// Neighbouring ranks [first, first + count) of the world.
struct RankRange {
  int first = 0, count = 1;
  auto operator<=>(const RankRange&) const = default;
  bool holds(int rank) const { return rank >= first && rank < first + count; }
};

/// The ranks of a run, and the machines that they are on.
struct RanksOfRun {
  int num_ranks = 1;
  int ranks_per_machine = 1;  // neighbours

  /// Returns the ranges of `degree` ranks that may share a row, by their first rank. A range is
  /// inside of a machine, where it begins at a multiple of its length or ends with the machine; or
  /// it is of whole machines, with the same rule among machines; or it is of all ranks.
  std::vector<RankRange> ranges(int degree) const;
};

/// A row of a step: the indices of its examples in the step, and the ranks that share the row.
struct DealtRow {
  std::vector<int64_t> examples;
  RankRange ranks;
};

/// The rows of a step, in an order that all ranks follow.
struct Dealing {
  std::vector<DealtRow> rows;
  std::vector<double> seconds;  // estimated work of each rank
  double end = 0;               // estimated seconds until the last rank has computed its rows

  /// Returns the time of the step over the mean work of a rank, at least 1: waiting counts.
  double imbalance() const;
};

struct DealingRules {
  RanksOfRun ranks = {};
  std::vector<int> degrees = {};  // numbers of ranks that may share a row, ascending
  /// A row has at most this number of tokens for each of its ranks, unless a single example needs
  /// more than all ranks allow.
  int64_t tokens_per_rank = INT64_MAX;
  int64_t examples_per_row = INT64_MAX;
  /// All ranks compute a row at the same time, since collectives of the world are within rows.
  bool together = false;
  /// Returns the estimated seconds of a document with `length` tokens on `degree` ranks.
  std::function<double(int64_t length, int degree)> seconds = {};
};

/// Deals examples, given by the lengths of their documents. Each example gets the smallest degree
/// whose time is at most a fraction of a rank's mean work. Then, in descending order, each example
/// gets the ranks that are free first (list scheduling, Graham 1969); with `together`, the first
/// turn with free ranks whose tallest row is at least as tall (first-fit decreasing height, Coffman
/// 1980). Examples that end last get more ranks, as long as the step ends earlier. Of several
/// fractions, the result is the dealing with the fewest ranks for each example that ends about as
/// early as any. Examples with equal ranks share rows. The
/// result depends on the arguments only, so all ranks get the same. Throws std::logic_error if an
/// estimate is not finite.
Dealing deal(const std::vector<std::vector<int64_t>>& examples, const DealingRules& rules);

/// Returns the row of `rank` in each of its turns, by the index in Dealing::rows; nullopt: no row.
/// `together`: all ranks have equally many turns, and a row has the same turn on all of its ranks.
/// Otherwise every turn has a row.
std::vector<std::optional<size_t>> turns_of(const Dealing& dealing, int rank, bool together);

}  // namespace longspan
