#include "longspan/rows/row_numbers.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <vector>

#include "longspan/memory/recently_used.h"
#include "longspan/memory/transfer.h"

namespace longspan {
namespace {

struct NumbersOf {
  std::vector<int64_t> boundaries;
  RowNumbers what;
  std::array<int64_t, 2> sizes;
  at::Device device;
  c10::Stream stream;  // that copies, reads and frees the numbers
  bool operator==(const NumbersOf&) const = default;
};

constexpr int64_t kMostBytes = int64_t{1} << 24;

int64_t token_bytes(RowNumbers what) { return what == RowNumbers::kDocuments ? 8 : 1; }

}  // namespace

at::Tensor row_numbers(const Packing& packing, RowNumbers what, std::array<int64_t, 2> sizes,
                       at::Device device, const std::function<at::Tensor()>& make) {
  // Never destroyed: the driver may be gone at exit.
  static auto& recent = *new RecentlyUsed<NumbersOf, at::Tensor>(kMostBytes);
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  return recent.of({packing.boundaries(), what, sizes, device, stream},
                   packing.num_tokens() * token_bytes(what),
                   [&] { return sent_to(make(), device); });
}

}  // namespace longspan
