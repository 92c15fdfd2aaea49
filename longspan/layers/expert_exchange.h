// How a layer reaches experts that other processes hold: it sends rows to them and gets their
// outputs back, and computes in turn the rows that come to its own experts.
// E: experts of a layer, R: rows that leave, a row for each expert that it goes to, S: those that
// come.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace longspan {

/// Experts [begin, end) of a layer.
struct ExpertRange {
  int64_t begin, end;
};

/// Sends the rows of one pass through a layer to their experts and back, each in one exchange,
/// after one of their counts, unless these are known. Rows that leave are sorted by expert, and so
/// are the rows that come. The first question waits for the counts.
class ExpertRoutes {
 public:
  virtual ~ExpertRoutes() = default;
  /// How many rows leave for each expert.
  virtual const std::vector<int64_t>& leaving() const = 0;
  /// How many rows come to each expert that is here.
  virtual const std::vector<int64_t>& counts() const = 0;
  /// All that the host has waited for (ExpertExchange::open_again).
  virtual const std::vector<int64_t>& numbers() const = 0;
  /// Tensors of so many numbers for each row, [R, ...] and any dtypes -> [S, ...].
  virtual std::vector<at::Tensor> to_experts(const std::vector<at::Tensor>& x_R) const = 0;
  /// The other way.
  virtual std::vector<at::Tensor> back(const std::vector<at::Tensor>& y_S) const = 0;
};

class ExpertExchange {
 public:
  virtual ~ExpertExchange() = default;
  /// Which of a layer's experts are here: it has the parameters of these alone.
  virtual ExpertRange here(int64_t num_experts) const = 0;
  /// counts_E: int64 where the rows are, how many leave for each expert. All processes that share
  /// out the experts open routes in the same order, also those that have no rows. Starts the
  /// exchange of counts, and waits for nothing on a GPU.
  virtual std::unique_ptr<ExpertRoutes> open(const at::Tensor& counts_E) = 0;
  /// The routes that had these numbers() once more: exchanges no counts, and waits for nothing.
  virtual std::unique_ptr<ExpertRoutes> open_again(std::vector<int64_t> numbers) = 0;
};

}  // namespace longspan
