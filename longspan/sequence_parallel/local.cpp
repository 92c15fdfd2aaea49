// T: tokens of the row, N: query heads, M: kv heads, H: head dim.
#include "longspan/attention/leaf_attention.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/sequence_parallel/share_of.h"

namespace longspan {
namespace {

class Local : public SequenceParallel {
 public:
  explicit Local(const BlockKernel& kernel) : kernel_(kernel) {}

  at::Tensor attend(const at::Tensor& q_TNH, const at::Tensor& k_TMH, const at::Tensor& v_TMH,
                    const Packing& packing) override {
    return leaf_attention(kernel_, q_TNH, k_TMH, v_TMH, packing);
  }

  TokenOrder token_order(const Packing& packing, int64_t multiple) const override {
    return consecutive_order(packing, multiple, Group());
  }

 private:
  const BlockKernel& kernel_;
};

}  // namespace

std::unique_ptr<SequenceParallel> make_local(const BlockKernel& kernel) {
  return std::make_unique<Local>(kernel);
}

}  // namespace longspan
