// Where the experts of a layer are when some of them are not here: a layer sends rows to them and
// gets back what they make of them, and computes in turn what comes to its own.
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

/// The way of the rows of one use of a layer. One exchange there and one back, and one of counts
/// before them. Rows that leave lie by expert, and rows that come lie by expert that is here. The
/// first question waits for the counts.
class ExpertRoutes {
 public:
  virtual ~ExpertRoutes() = default;
  /// How many rows leave for each expert.
  virtual const std::vector<int64_t>& leaving() const = 0;
  /// How many rows come to each expert that is here.
  virtual const std::vector<int64_t>& counts() const = 0;
  /// Tensors of so many numbers for each row, [R, ...] and any dtypes -> [S, ...].
  virtual std::vector<at::Tensor> to_experts(const std::vector<at::Tensor>& x_R) const = 0;
  /// The other way.
  virtual std::vector<at::Tensor> back(const std::vector<at::Tensor>& y_S) const = 0;
};

class ExpertExchange {
 public:
  virtual ~ExpertExchange() = default;
  /// Those of so many experts of a layer that are here: its parameters are those of no others.
  virtual ExpertRange here(int64_t num_experts) const = 0;
  /// counts_E: int64 where the rows are, how many leave for each expert. Whoever shares out the
  /// experts opens one after the other in the same order, also with no rows at all. Starts the
  /// exchange of counts, and waits for nothing on a GPU.
  virtual std::unique_ptr<ExpertRoutes> open(const at::Tensor& counts_E) = 0;
};

}  // namespace longspan
