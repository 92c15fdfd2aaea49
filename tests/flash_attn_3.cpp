// A CPU stand-in for FlashAttention 3, for tests of its callers: the operators that the newest
// published package registers, with their argument checks, in ATen operators. Also accepts fp32 and
// fp64. L: queries and K: keys of a segment, N: query heads, M: kv heads, H: elements of a head.
#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <torch/library.h>

#include <functional>
#include <limits>
#include <optional>
#include <tuple>

// Symbols of Python, which test programs do not contain.
extern "C" void* PyModule_Create2(void* definition, int version);
extern "C" void* PyInit__C() { return PyModule_Create2(nullptr, 1013); }

namespace {

using at::Tensor;
using OptionalTensor = const std::optional<Tensor>&;

struct Mask {
  bool causal;
  int64_t left, right;

  // Query i is aligned with key i + K - L.
  Tensor seen(int64_t L, int64_t K) const {
    Tensor seen = at::ones({L, K}, at::kBool);
    if (causal || right >= 0) seen = seen.tril(K - L + (causal ? 0 : right));
    if (left >= 0) seen = seen.triu(K - L - left);
    return seen;
  }
};

void check_boundaries(OptionalTensor boundaries, const std::optional<int64_t>& longest,
                      const Tensor& x) {
  TORCH_CHECK(boundaries && boundaries->scalar_type() == at::kInt && boundaries->is_contiguous(),
              "boundaries are contiguous int32");
  TORCH_CHECK(longest, "the longest length must be given");
  TORCH_CHECK(longest == boundaries->diff().max().item<int64_t>(), "the longest is another");
  TORCH_CHECK(boundaries->select(0, 0).item<int>() == 0 &&
                  boundaries->select(0, -1).item<int64_t>() == x.size(0),
              "boundaries are of other tokens");
}

void check_heads(const Tensor& q, const Tensor& k, const Tensor& v) {
  for (const Tensor& x : {q, k, v}) {
    TORCH_CHECK(x.dim() == 3 && x.stride(-1) == 1 && x.scalar_type() == q.scalar_type(),
                "queries, keys and values are packed, of one dtype");
    TORCH_CHECK(x.size(2) % 8 == 0 && x.size(2) <= 256, "head dims are multiples of 8, up to 256");
  }
  TORCH_CHECK(q.size(1) % k.size(1) == 0, "kv heads must divide query heads");
  TORCH_CHECK(k.size(2) == v.size(2), "of other values than keys few are known");
}

// [K, M, H] -> [N, K, H]
Tensor keys(const Tensor& x, int64_t N) {
  return x.to(at::toOpMathType(x.scalar_type()))
      .repeat_interleave(N / x.size(1), 1)
      .transpose(0, 1);
}

// Returns the scores of a segment, [N, L, K]; masked pairs are minus infinity.
Tensor scores(const Tensor& q, const Tensor& k, double scale, const Mask& mask) {
  const Tensor queries = q.to(at::toOpMathType(q.scalar_type())).transpose(0, 1);
  const Tensor all = at::matmul(queries, keys(k, q.size(1)).transpose(1, 2)) * scale;
  return all.masked_fill(mask.seen(q.size(0), k.size(0)).logical_not(),
                         -std::numeric_limits<double>::infinity());
}

struct Part {
  int64_t q_begin, L, k_begin, K;
  Tensor queries(const Tensor& x, int64_t dim = 0) const { return x.narrow(dim, q_begin, L); }
  Tensor of_keys(const Tensor& x) const { return x.narrow(0, k_begin, K); }
};

void each_part(const Tensor& boundaries_q, const Tensor& boundaries_k,
               const std::function<void(const Part&)>& use) {
  TORCH_CHECK(boundaries_q.sizes() == boundaries_k.sizes(), "other numbers of segments");
  const int *const q = boundaries_q.const_data_ptr<int>(), *const k =
                                                               boundaries_k.const_data_ptr<int>();
  for (int64_t i = 0; i + 1 < boundaries_q.size(0); ++i) {
    use({q[i], q[i + 1] - q[i], k[i], k[i + 1] - k[i]});
  }
}

std::tuple<Tensor, Tensor, Tensor, Tensor> forward(
    const Tensor& q, const Tensor& k, const Tensor& v, OptionalTensor k_new, OptionalTensor v_new,
    OptionalTensor q_v, OptionalTensor out_, OptionalTensor cu_seqlens_q,
    OptionalTensor cu_seqlens_k, OptionalTensor cu_seqlens_k_new, OptionalTensor seqused_q,
    OptionalTensor seqused_k, std::optional<int64_t> max_seqlen_q,
    std::optional<int64_t> max_seqlen_k, OptionalTensor page_table, OptionalTensor kv_batch_idx,
    OptionalTensor leftpad_k, OptionalTensor rotary_cos, OptionalTensor rotary_sin,
    OptionalTensor seqlens_rotary, OptionalTensor q_descale, OptionalTensor k_descale,
    OptionalTensor v_descale, std::optional<double> softmax_scale, bool is_causal,
    int64_t window_size_left, int64_t window_size_right, int64_t attention_chunk, double softcap,
    bool is_rotary_interleaved, OptionalTensor scheduler_metadata, int64_t num_splits,
    std::optional<bool> pack_gqa, int64_t sm_margin) {
  check_heads(q, k, v);
  check_boundaries(cu_seqlens_q, max_seqlen_q, q);
  check_boundaries(cu_seqlens_k, max_seqlen_k, k);
  TORCH_CHECK(!out_ && !k_new && !q_v && !seqused_q && !seqused_k && !page_table && !rotary_cos &&
                  !q_descale && !scheduler_metadata && attention_chunk == 0 && softcap == 0 &&
                  num_splits == 1 && sm_margin == 0,
              "what training does not use");
  Tensor out = at::empty({q.size(0), q.size(1), v.size(2)}, q.options());
  Tensor lse =
      at::empty({q.size(1), q.size(0)}, q.options().dtype(at::toOpMathType(q.scalar_type())));
  each_part(*cu_seqlens_q, *cu_seqlens_k, [&](const Part& part) {
    const Tensor s = scores(part.queries(q), part.of_keys(k), softmax_scale.value(),
                            {is_causal, window_size_left, window_size_right});
    part.queries(lse, 1).copy_(at::logsumexp(s, -1));
    part.queries(out).copy_(
        at::matmul(at::softmax(s, -1), keys(part.of_keys(v), q.size(1))).transpose(0, 1));
  });
  return {out, lse, Tensor(), Tensor()};
}

// [N, K, H] -> [K, M, H]
Tensor of_kv_heads(const Tensor& x, int64_t M) {
  return x.unflatten(0, {M, -1}).sum(1).transpose(0, 1);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> backward(
    const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
    const Tensor& softmax_lse, OptionalTensor dq, OptionalTensor dk, OptionalTensor dv,
    OptionalTensor cu_seqlens_q, OptionalTensor cu_seqlens_k, OptionalTensor seqused_q,
    OptionalTensor seqused_k, std::optional<int64_t> max_seqlen_q,
    std::optional<int64_t> max_seqlen_k, std::optional<double> softmax_scale, bool is_causal,
    int64_t window_size_left, int64_t window_size_right, double softcap, bool deterministic,
    int64_t sm_margin) {
  check_heads(q, k, v);
  check_boundaries(cu_seqlens_q, max_seqlen_q, q);
  check_boundaries(cu_seqlens_k, max_seqlen_k, k);
  TORCH_CHECK(!deterministic || q.size(2) <= 192, "not deterministic for 256 numbers");
  TORCH_CHECK(softmax_lse.is_contiguous() && softmax_lse.size(0) == q.size(1) &&
                  softmax_lse.size(1) == q.size(0),
              "lse is [heads, tokens]");
  TORCH_CHECK(dout.sizes() == out.sizes() && dout.scalar_type() == q.scalar_type() &&
                  out.scalar_type() == q.scalar_type() && dq && dk && dv,
              "outputs are of the dtype of queries");
  TORCH_CHECK(!seqused_q && !seqused_k && softcap == 0 && sm_margin == 0,
              "what training does not use");
  const auto exact = [](const Tensor& x) { return x.to(at::toOpMathType(x.scalar_type())); };
  each_part(*cu_seqlens_q, *cu_seqlens_k, [&](const Part& part) {
    const double scale = softmax_scale.value();
    const Tensor s = scores(part.queries(q), part.of_keys(k), scale,
                            {is_causal, window_size_left, window_size_right});
    const Tensor p = at::exp(s - part.queries(softmax_lse, 1).unsqueeze(-1));
    const Tensor d = exact(part.queries(dout)).transpose(0, 1);
    const Tensor delta = (d * exact(part.queries(out)).transpose(0, 1)).sum(-1, /*keepdim=*/true);
    const Tensor ds =
        p * (at::matmul(d, keys(part.of_keys(v), q.size(1)).transpose(1, 2)) - delta) * scale;
    part.queries(*dq).copy_(at::matmul(ds, keys(part.of_keys(k), q.size(1))).transpose(0, 1));
    part.of_keys(*dk).copy_(of_kv_heads(
        at::matmul(ds.transpose(1, 2), exact(part.queries(q)).transpose(0, 1)), k.size(1)));
    part.of_keys(*dv).copy_(of_kv_heads(at::matmul(p.transpose(1, 2), d), k.size(1)));
  });
  return {Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
}

}  // namespace

TORCH_LIBRARY(flash_attn_3, library) {
  library.def(
      "fwd(Tensor q, Tensor k, Tensor v, Tensor(k_new!)? k_new = None, Tensor(v_new!)? v_new = "
      "None, Tensor? q_v = None, Tensor(out!)? out = None, Tensor? cu_seqlens_q = None, Tensor? "
      "cu_seqlens_k = None, Tensor? cu_seqlens_k_new = None, Tensor? seqused_q = None, Tensor? "
      "seqused_k = None, int? max_seqlen_q = None, int? max_seqlen_k = None, Tensor? page_table = "
      "None, Tensor? kv_batch_idx = None, Tensor? leftpad_k = None, Tensor? rotary_cos = None, "
      "Tensor? rotary_sin = None, Tensor? seqlens_rotary = None, Tensor? q_descale = None, "
      "Tensor? k_descale = None, Tensor? v_descale = None, float? softmax_scale = None, bool "
      "is_causal = False, int window_size_left = -1, int window_size_right = -1, int "
      "attention_chunk = 0, float softcap = 0.0, bool is_rotary_interleaved = False, Tensor? "
      "scheduler_metadata = None, int num_splits = 0, bool? pack_gqa = None, int sm_margin = 0) "
      "-> (Tensor(out!), Tensor, Tensor, Tensor)");
  library.def(
      "bwd(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, "
      "Tensor(dq!)? dq = None, Tensor(dk!)? dk = None, Tensor(dv!)? dv = None, Tensor? "
      "cu_seqlens_q = None, Tensor? cu_seqlens_k = None, Tensor? seqused_q = None, Tensor? "
      "seqused_k = None, int? max_seqlen_q = None, int? max_seqlen_k = None, float? softmax_scale "
      "= None, bool is_causal = False, int window_size_left = -1, int window_size_right = -1, "
      "float softcap = 0.0, bool deterministic = False, int sm_margin = 0) -> (Tensor, Tensor, "
      "Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(flash_attn_3, CPU, library) {
  library.impl("fwd", &forward);
  library.impl("bwd", &backward);
}
