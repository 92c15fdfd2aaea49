// T: query tokens, S: key tokens, N: query heads, M: kv heads, G = N / M, c: queries and s: keys of
// a part, H: numbers in a head.
#include "longspan/attention/composed_attention.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <algorithm>
#include <limits>
#include <optional>

namespace longspan::composed {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

/// Some queries of a block, and all keys that they see.
struct Part {
  int64_t q_begin, num_queries, k_begin, num_keys;
  std::optional<int64_t> last_seen, first_seen;  // keys of the part that query 0 sees

  /// A mask of the keys that each query does not see; undefined where every query sees every key.
  /// It is made at use, since the masks of all parts would be as large as the square of the row.
  at::Tensor hidden_cs(const at::Tensor& like) const {
    if (!last_seen && !first_seen) return {};
    at::Tensor seen = at::ones({num_queries, num_keys}, like.options().dtype(at::kBool));
    if (last_seen) seen = seen.tril(*last_seen);
    if (first_seen) seen = seen.triu(*first_seen);
    return seen.logical_not();
  }
};

/// Cuts a block into parts of few queries, so that their scores stay in the processor's caches.
std::vector<Part> parts_of(const Block& block, int64_t num_heads) {
  constexpr int64_t kScores = int64_t{1} << 20;
  std::vector<Part> parts;
  for (int64_t begin = 0; begin < block.q_length;) {
    const int64_t first = keys_of(block, begin).begin;
    const int64_t width = std::max<int64_t>(1, keys_of(block, begin).length());
    const int64_t most = std::clamp<int64_t>(kScores / (num_heads * width), 16, 256);
    const int64_t count = std::min(most, block.q_length - begin);
    const int64_t last = keys_of(block, begin + count - 1).end;
    if (first < last) {
      Part part{block.q_begin + begin, count, block.k_begin + first, last - first, {}, {}};
      if (block.causal) part.last_seen = begin + block.offset - first;
      if (block.lower) part.first_seen = begin + *block.lower - first;
      parts.push_back(part);
    }
    begin += count;
  }
  return parts;
}

struct Heads {
  int64_t num_kv_heads;
  at::ScalarType dtype;

  // [T, N, H] -> [M, G c, H]
  at::Tensor queries(const at::Tensor& x_TNH, const Part& part) const {
    const at::Tensor x = x_TNH.narrow(0, part.q_begin, part.num_queries).to(dtype);
    return x.unflatten(1, {num_kv_heads, -1}).permute({1, 2, 0, 3}).flatten(1, 2);
  }
  // [M, G c, H] -> [c, N, H]
  at::Tensor from_queries(const at::Tensor& x, const Part& part) const {
    return x.unflatten(1, {-1, part.num_queries}).permute({2, 0, 1, 3}).flatten(1, 2);
  }
  // [S, M, H] -> [M, s, H]
  at::Tensor keys(const at::Tensor& x_SMH, const Part& part) const {
    return x_SMH.narrow(0, part.k_begin, part.num_keys).to(dtype).transpose(0, 1);
  }
  // [N, T] -> [M, G c, 1]
  at::Tensor numbers(const at::Tensor& x_NT, const Part& part) const {
    return x_NT.narrow(1, part.q_begin, part.num_queries).to(dtype).reshape({num_kv_heads, -1, 1});
  }
};

/// [M, G c, s]: tanh of scores over the softcap (undefined without a softcap), and the scores.
/// Hidden scores are -inf.
struct Scores {
  at::Tensor tanh, scores;
};

Scores scores_of(const at::Tensor& q, const at::Tensor& k, const AttentionSpec& spec,
                 const Part& part) {
  Scores result;
  result.scores = at::bmm(q, k.transpose(1, 2)).mul_(spec.scale);
  if (spec.softcap) {
    result.tanh = result.scores.div_(*spec.softcap).tanh_();
    result.scores = result.tanh * *spec.softcap;
  }
  if (const at::Tensor hidden_cs = part.hidden_cs(q); hidden_cs.defined()) {
    const at::Tensor of_heads = result.scores.unflatten(1, {-1, part.num_queries});  // [M, G, c, s]
    of_heads.masked_fill_(hidden_cs, kMinusInfinity);
  }
  return result;
}

/// Replaces -inf by 0. A query that saw no key has lse -inf and scores of -inf, and their
/// difference would be NaN.
at::Tensor finite(const at::Tensor& lse) { return lse.masked_fill(lse == kMinusInfinity, 0.0); }

}  // namespace

AttentionResult forward(const at::Tensor& q_TNH, const at::Tensor& k_SMH, const at::Tensor& v_SMH,
                        const AttentionSpec& spec, const std::vector<Block>& blocks) {
  const int64_t T = q_TNH.size(0), N = q_TNH.size(1);
  const Heads heads{k_SMH.size(1), at::toOpMathType(q_TNH.scalar_type())};
  AttentionResult result{at::zeros({T, N, spec.value_dim}, q_TNH.options()),
                         at::full({N, T}, kMinusInfinity, q_TNH.options().dtype(heads.dtype))};
  for (const Block& block : blocks) {
    for (const Part& part : parts_of(block, N)) {
      const at::Tensor scores =
          scores_of(heads.queries(q_TNH, part), heads.keys(k_SMH, part), spec, part).scores;
      const at::Tensor lse = at::logsumexp(scores, {-1}, /*keepdim=*/true);
      const at::Tensor out = at::bmm((scores - finite(lse)).exp_(), heads.keys(v_SMH, part));
      result.out_TNH.narrow(0, part.q_begin, part.num_queries).copy_(heads.from_queries(out, part));
      result.lse_NT.narrow(1, part.q_begin, part.num_queries)
          .copy_(lse.view({N, part.num_queries}));
    }
  }
  return result;
}

AttentionGradients backward(const AttentionGradientInputs& inputs, const AttentionSpec& spec,
                            const std::vector<Block>& blocks) {
  const auto& [dout_TNH, q_TNH, k_SMH, v_SMH, out_TNH, lse_NT] = inputs;
  const Heads heads{k_SMH.size(1), at::toOpMathType(q_TNH.scalar_type())};
  const auto zeros = [&](const at::Tensor& x) {
    return at::zeros(x.sizes(), x.options().dtype(heads.dtype));
  };
  AttentionGradients gradients{zeros(q_TNH), zeros(k_SMH), zeros(v_SMH)};
  const at::Tensor delta_NT =
      (dout_TNH.to(heads.dtype) * out_TNH.to(heads.dtype)).sum(-1).transpose(0, 1);
  for (const Block& block : blocks) {
    for (const Part& part : parts_of(block, q_TNH.size(1))) {
      const at::Tensor q = heads.queries(q_TNH, part), k = heads.keys(k_SMH, part),
                       v = heads.keys(v_SMH, part), dout = heads.queries(dout_TNH, part);
      const Scores scores = scores_of(q, k, spec, part);
      const at::Tensor p = (scores.scores - finite(heads.numbers(lse_NT, part))).exp();
      at::Tensor ds = at::bmm(dout, v.transpose(1, 2))
                          .sub_(heads.numbers(delta_NT, part))
                          .mul_(p)
                          .mul_(spec.scale);
      if (spec.softcap) ds.mul_(1.0 - scores.tanh.square());
      gradients.dq_TNH.narrow(0, part.q_begin, part.num_queries)
          .add_(heads.from_queries(at::bmm(ds, k), part));
      gradients.dk_SMH.narrow(0, part.k_begin, part.num_keys)
          .add_(at::bmm(ds.transpose(1, 2), q).transpose(0, 1));
      gradients.dv_SMH.narrow(0, part.k_begin, part.num_keys)
          .add_(at::bmm(p.transpose(1, 2), dout).transpose(0, 1));
    }
  }
  return gradients;
}

}  // namespace longspan::composed
