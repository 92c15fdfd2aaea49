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

/// A row of a step: the indices of its examples in the step, and the ranks that share the row.
struct DealtRow {
  std::vector<int64_t> examples;
  RankRange ranks;
};

/// The rows of a step, in an order that all ranks follow.
struct Dealing {
  std::vector<DealtRow> rows;
  std::vector<double> seconds;  // estimated work of each rank

  /// Returns the largest of `seconds` over their mean; 1 for a step without work.
  double imbalance() const;
};

struct DealingRules {
  int num_ranks = 1;
  std::vector<int> degrees = {};  // numbers of ranks that may share a row, ascending
  /// The first rank of a row is a multiple of the row's number of ranks. Otherwise a row may also
  /// end at the last rank.
  bool aligned = false;
  /// A row has at most this number of tokens for each of its ranks, unless a single example needs
  /// more than all ranks allow.
  int64_t tokens_per_rank = INT64_MAX;
  int64_t examples_per_row = INT64_MAX;
  /// Returns the estimated seconds of a document with `length` tokens on `degree` ranks.
  std::function<double(int64_t length, int degree)> seconds = {};
};

/// Deals examples, given by the lengths of their documents. Each example gets the smallest degree
/// whose time is at most a fraction of a rank's mean work. In descending order of degree and time,
/// each example then gets the ranks that are free first (list scheduling, Graham 1969). Examples
/// that end last get more ranks, as long as the step ends earlier. Of several fractions, the result
/// is the dealing that ends first. Examples with equal ranks share rows. The result depends on the
/// arguments only, so all ranks get the same.
Dealing deal(const std::vector<std::vector<int64_t>>& examples, const DealingRules& rules);

/// Returns the row of `rank` in each of its turns, by the index in Dealing::rows; nullopt: no row.
/// `together`: all ranks have equally many turns, and a row has the same turn on all of its ranks,
/// for steps with collectives of the world within each row. Otherwise every turn has a row.
std::vector<std::optional<size_t>> turns_of(const Dealing& dealing, int rank, bool together);

}  // namespace longspan
