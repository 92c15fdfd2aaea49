// Exchange of rows with experts on other processes. A layer sends rows to these experts, gets the
// outputs back, and computes arriving rows for the experts of this process. E: experts of a layer,
// R: leaving rows, one for each pair of a row and one of its experts, S: arriving rows.
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

/// Sends the rows of one pass through a layer to their experts and back, each way in one exchange.
/// The counts of rows are exchanged first, unless they are known. Leaving and arriving rows are
/// sorted by expert. The first call waits for the counts.
class ExpertRoutes {
 public:
  virtual ~ExpertRoutes() = default;
  /// Leaving rows for each expert.
  virtual const std::vector<int64_t>& leaving() const = 0;
  /// Arriving rows for each expert of this process.
  virtual const std::vector<int64_t>& counts() const = 0;
  /// All counts for which the host has waited, for ExpertExchange::open_again().
  virtual const std::vector<int64_t>& numbers() const = 0;
  /// Sends tensors with one entry for each row, [R, ...] in any dtypes. Returns the arrived
  /// tensors, [S, ...].
  virtual std::vector<at::Tensor> to_experts(const std::vector<at::Tensor>& x_R) const = 0;
  /// Sends results back.
  virtual std::vector<at::Tensor> back(const std::vector<at::Tensor>& y_S) const = 0;
};

class ExpertExchange {
 public:
  virtual ~ExpertExchange() = default;
  /// Returns the range of a layer's experts whose parameters this process holds.
  virtual ExpertRange here(int64_t num_experts) const = 0;
  /// Opens routes. counts_E: leaving rows for each expert, int64, on the rows' device. All
  /// processes that divide the experts open routes in the same order, even without rows. Starts the
  /// exchange of counts; on a GPU the host does not wait for the exchange.
  virtual std::unique_ptr<ExpertRoutes> open(const at::Tensor& counts_E) = 0;
  /// Opens earlier routes again, by their numbers(). Exchanges no counts, and does not wait.
  virtual std::unique_ptr<ExpertRoutes> open_again(std::vector<int64_t> numbers) = 0;
};

}  // namespace longspan
