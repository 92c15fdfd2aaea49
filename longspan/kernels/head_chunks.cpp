#include "longspan/kernels/head_chunks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "longspan/kernels/gemm.h"
#include "longspan/kernels/storage_type.h"
#include "longspan/spec/device_sizes.h"

namespace longspan {
namespace {

/// A part's fp64 tensor takes an eighth of the memory of a chunk's fp32 logits.
constexpr int64_t kPartsOfChunk = 16;

}  // namespace

HeadChunks::HeadChunks(std::vector<HeadInput> heads, ChunkBytes chunk_bytes)
    : heads_(std::move(heads)) {
  for (HeadInput& head : heads_) {
    TORCH_CHECK(head.temperature > 0 && std::isfinite(head.temperature), "a temperature of ",
                head.temperature);
    TORCH_CHECK(!head.softcap || (*head.softcap > 0 && std::isfinite(*head.softcap)),
                "a softcap of ", head.softcap.value_or(0));
    head.hidden_LD = head.hidden_LD.detach();
    head.weight_VD = head.weight_VD.detach().to(head.hidden_LD.scalar_type());
  }
  const HeadInput& first = heads_.front();
  const auto dtype = arithmetic_dtype(first.hidden_LD.scalar_type());
  for (const HeadInput& head : heads_) {
    TORCH_CHECK(head.weight_VD.size(0) == first.weight_VD.size(0), "heads of ",
                first.weight_VD.size(0), " and ", head.weight_VD.size(0), " tokens");
    TORCH_CHECK(head.hidden_LD.size(0) == first.hidden_LD.size(0), "heads for ",
                first.hidden_LD.size(0), " and ", head.hidden_LD.size(0), " positions");
    TORCH_CHECK(arithmetic_dtype(head.hidden_LD.scalar_type()) == dtype, "logits in ", dtype,
                " and in ", arithmetic_dtype(head.hidden_LD.scalar_type()));
  }
  HeadChunk chunk = device_sizes(!first.hidden_LD.is_cpu()).head;
  chunk.bytes = chunk_bytes.value_or(chunk.bytes);
  rows_ = chunk.rows(first.weight_VD.size(0),
                     static_cast<int64_t>(heads_.size() * c10::elementSize(dtype)));
}

int64_t HeadChunks::num_chunks() const {
  return (heads_.front().hidden_LD.size(0) + rows_ - 1) / rows_;
}

void HeadChunks::for_each(const Body& body) const {
  const int64_t L = heads_.front().hidden_LD.size(0), V = heads_.front().weight_VD.size(0);
  std::vector<at::Tensor> buffers;
  for (const HeadInput& head : heads_) {
    const auto dtype = arithmetic_dtype(head.hidden_LD.scalar_type());
    buffers.push_back(at::empty({std::min(rows_, L), V}, head.hidden_LD.options().dtype(dtype)));
  }
  for (int64_t begin = 0; begin < L; begin += rows_) {
    const int64_t size = std::min(rows_, L - begin);
    std::vector<at::Tensor> logits;
    for (size_t i = 0; i < heads_.size(); ++i) {
      const HeadInput& head = heads_[i];
      logits.push_back(buffers[i].narrow(0, 0, size));
      gemm_out(logits[i], head.hidden_LD.narrow(0, begin, size), head.weight_VD.t());
      if (head.softcap) logits[i].div_(*head.softcap).tanh_().mul_(*head.softcap);
      if (head.temperature != 1.0) logits[i].div_(head.temperature);
    }
    body(begin, size, logits);
  }
}

void HeadChunks::for_parts(int64_t num_rows,
                           const std::function<void(int64_t, int64_t)>& work) const {
  const int64_t part = std::max<int64_t>(1, rows_ / kPartsOfChunk);
  for (int64_t begin = 0; begin < num_rows; begin += part) {
    work(begin, std::min(part, num_rows - begin));
  }
}

void add_head_gradients(const at::Tensor& dlogits_CV, const at::Tensor& hidden_CD,
                        const at::Tensor& weight_VD, at::Tensor dhidden_CD,
                        const at::Tensor& dweight_VD, double dweight_scale) {
  if (dhidden_CD.defined()) gemm_out(dhidden_CD, dlogits_CV, weight_VD);
  if (dweight_VD.defined()) add_gemm_(dweight_VD, dlogits_CV.t(), hidden_CD, dweight_scale);
}

}  // namespace longspan
