// The destinations of a chunk's rows in a mixture of experts. C: rows, K: experts of a row, R: C K,
// the pairs of a row and one of its experts, E: experts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "longspan/layers/expert_exchange.h"
#include "longspan/memory/transfer.h"

namespace longspan {

/// Sorts rows by expert. The constructor starts to send the number of rows for each expert to the
/// host. The host may give the device other work before it reads these numbers. on_device() keeps
/// the numbers on the device.
class ExpertDispatch {
 public:
  /// Opens routes for the rows by `exchange`; null: this process has all experts.
  ExpertDispatch(const at::Tensor& experts_CK, int64_t num_experts, ExpertExchange* exchange);
  /// For code that works on all experts at once (grouped_experts.h). Sends nothing to the host.
  static ExpertDispatch on_device(const at::Tensor& experts_CK, int64_t num_experts);
  /// Dispatches the rows of an earlier dispatch again, by its numbers(). The host does not wait.
  ExpertDispatch(const at::Tensor& experts_CK, std::vector<int64_t> numbers,
                 ExpertExchange* exchange);

  /// The rows, sorted by expert, and their places in the flattened weights. int64, [R].
  const at::Tensor& rows() const { return rows_R_; }
  const at::Tensor& places() const { return places_R_; }
  /// Only with an exchange.
  const ExpertRoutes& routes() const { return *routes_; }
  /// Returns the counts for which the host waits. A later dispatch of the same rows with these
  /// counts needs no wait. Empty for on_device().
  std::vector<int64_t> numbers() const;
  /// Rows for each expert, int64, for on_device(); else undefined.
  const at::Tensor& device_counts() const { return device_counts_E_; }

  /// Calls use(expert, begin, count) with each expert's part of the rows, which may be empty. The
  /// host waits for the numbers.
  template <typename Use>
  void for_each(Use&& use) const {
    const std::vector<int64_t> counts = counts_on_host();
    int64_t begin = 0;
    for (size_t expert = 0; expert < counts.size(); ++expert) {
      use(expert, begin, counts[expert]);
      begin += counts[expert];
    }
  }

 private:
  ExpertDispatch() = default;
  void sort(const at::Tensor& experts_CK);
  std::vector<int64_t> counts_on_host() const;

  at::Tensor places_R_, rows_R_;
  std::unique_ptr<ExpertRoutes> routes_;
  // The number of rows for each expert, only without an exchange. The copy to the host may be
  // running.
  std::optional<ToHost> counts_E_;
  std::vector<int64_t> known_E_;
  at::Tensor device_counts_E_;
};

}  // namespace longspan
