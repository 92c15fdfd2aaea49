#include "longspan/attention/equal_dims.h"

#include <ATen/ops/constant_pad_nd.h>

namespace longspan {

at::Tensor with_head_dim(const at::Tensor& x_TNH, int64_t head_dim) {
  const int64_t missing = head_dim - x_TNH.size(2);
  return missing == 0 ? x_TNH : at::constant_pad_nd(x_TNH, {0, missing});
}

at::Tensor without_padding(const at::Tensor& x_TNH, int64_t head_dim) {
  return head_dim == x_TNH.size(2) ? x_TNH : x_TNH.narrow(2, 0, head_dim).contiguous();
}

}  // namespace longspan
