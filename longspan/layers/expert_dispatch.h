// Where the rows of a chunk go in a mixture of experts.
// C: rows, R: those that leave, one for each expert that a row goes to, K: experts of a row, E:
// experts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "longspan/layers/expert_exchange.h"
#include "longspan/memory/transfer.h"

namespace longspan {

/// The rows by the expert that they go to. How many go to each is on its way to the host once this
/// is made, so that the host may give the device other work before it asks; or it stays on the
/// device, and no host knows.
class ExpertDispatch {
 public:
  /// `exchange` (null: all experts are here) then opens a way for the rows.
  ExpertDispatch(const at::Tensor& experts_CK, int64_t num_experts, ExpertExchange* exchange);
  /// For whoever works on all experts at once (grouped_experts.h): asks the host nothing.
  static ExpertDispatch on_device(const at::Tensor& experts_CK, int64_t num_experts);
  /// One more of rows that had these numbers(), for which the host does not wait again.
  ExpertDispatch(const at::Tensor& experts_CK, std::vector<int64_t> numbers,
                 ExpertExchange* exchange);

  /// Of all experts, one behind the other; and the places of their weights in the flattened
  /// weights. int64, [R].
  const at::Tensor& rows() const { return rows_R_; }
  const at::Tensor& places() const { return places_R_; }
  /// With an exchange.
  const ExpertRoutes& routes() const { return *routes_; }
  /// What the host waits for: all that the same rows need to be dispatched once more. Empty of
  /// those on the device.
  std::vector<int64_t> numbers() const;
  /// How many go to each expert, int64, of those on the device; else undefined.
  const at::Tensor& device_counts() const { return device_counts_E_; }

  /// Calls use(expert, begin, count) with the part of them for each expert; some have no rows. The
  /// host waits until it knows.
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
  // Without an exchange: how many go to each expert, on its way or known.
  std::optional<ToHost> counts_E_;
  std::vector<int64_t> known_E_;
  at::Tensor device_counts_E_;
};

}  // namespace longspan
