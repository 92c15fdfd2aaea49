#include "longspan/attention/flash/flash_attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "longspan/cpu/capability.h"

#include "longspan/memory/counting_allocator.h"

namespace longspan::flash {
namespace {

/// Softmax attention of the blocks in fp64 with plain products, and its gradients by the chain rule
/// written out.
struct Reference {
  at::Tensor out, lse, dq, dk, dv;
};

Reference reference(const at::Tensor& q_TNH, const at::Tensor& k_SMH, const at::Tensor& v_SMH,
                    const at::Tensor& dout_TNH, const AttentionSpec& spec,
                    const std::vector<Block>& blocks) {
  const int64_t T = q_TNH.size(0), N = q_TNH.size(1), S = k_SMH.size(0), M = k_SMH.size(1);
  at::Tensor seen = at::zeros({T, S}, at::kBool);
  for (const Block& b : blocks) {
    at::Tensor part = at::ones({b.q_length, b.k_length}, at::kBool);
    if (b.causal) part = part.tril(b.offset);
    if (b.lower) part = part.triu(*b.lower);
    seen.narrow(0, b.q_begin, b.q_length).narrow(1, b.k_begin, b.k_length).copy_(part);
  }
  const at::Tensor q = q_TNH.to(at::kDouble).transpose(0, 1);
  const at::Tensor k = k_SMH.to(at::kDouble).transpose(0, 1).repeat_interleave(N / M, 0);
  const at::Tensor v = v_SMH.to(at::kDouble).transpose(0, 1).repeat_interleave(N / M, 0);
  const at::Tensor dout = dout_TNH.to(at::kDouble).transpose(0, 1);
  const at::Tensor products = q.bmm(k.transpose(1, 2)) * spec.scale;
  const at::Tensor tanh = spec.softcap ? (products / *spec.softcap).tanh() : at::Tensor();
  const at::Tensor scores =
      (spec.softcap ? tanh * *spec.softcap : products).masked_fill(seen.logical_not(), -INFINITY);
  const at::Tensor lse = scores.logsumexp(-1);
  const at::Tensor p = (scores - lse.unsqueeze(-1)).exp().nan_to_num(0.0);
  const at::Tensor out = p.bmm(v), dp = dout.bmm(v.transpose(1, 2));
  at::Tensor ds = p * (dp - (dout * out).sum(-1, true)) * spec.scale;
  if (spec.softcap) ds = ds * (1 - tanh.square());
  const auto ungroup = [&](const at::Tensor& x) {
    return x.view({M, N / M, S, x.size(2)}).sum(1).transpose(0, 1);
  };
  return {out.transpose(0, 1), lse, ds.bmm(k).transpose(0, 1), ungroup(ds.transpose(1, 2).bmm(q)),
          ungroup(p.transpose(1, 2).bmm(dout))};
}

/// Relative to the norm of y, or to 1 (about the norm of inputs) where y is zero, as dq and dk of a
/// lone token are.
double relative_error(const at::Tensor& x, const at::Tensor& y) {
  return ((x.to(at::kDouble) - y).norm() / y.norm().clamp_min(1.0)).item<double>();
}

struct Case {
  const char* name;
  int64_t T, S, N, M, H;
  std::vector<Block> blocks;
  int64_t value_dim = H;
  double scale = 1 / std::sqrt(double(H));
  std::optional<double> softcap = {};

  AttentionSpec spec() const { return {.scale = scale, .softcap = softcap}; }
};

/// The spec of calls without a case of their own.
const AttentionSpec kSpec{.scale = 0.25};

/// The rounding error of an fp32 sum grows at most like the square root of its length: under 2e-7 *
/// sqrt(n) / a few here. 3e-6 is about five times the measured error, and far below the error of a
/// wrong mask, scale or tile.
constexpr double kTolerance = 3e-6;

void check(const Case& c, const Tiles& tiles) {
  CAPTURE(std::string(c.name));
  const at::Tensor q = at::randn({c.T, c.N, c.H}), k = at::randn({c.S, c.M, c.H});
  const at::Tensor v = at::randn({c.S, c.M, c.value_dim}),
                   dout = at::randn({c.T, c.N, c.value_dim});
  const Reference want = reference(q, k, v, dout, c.spec(), c.blocks);
  const AttentionResult got = forward(q, k, v, c.spec(), c.blocks, tiles);
  CHECK(relative_error(got.out_TNH, want.out) < kTolerance);
  const at::Tensor finite = want.lse.isfinite();
  CHECK(at::equal(got.lse_NT.isfinite(), finite));
  CHECK(relative_error(got.lse_NT.masked_select(finite), want.lse.masked_select(finite)) <
        kTolerance);
  const AttentionGradients grads =
      backward({dout, q, k, v, got.out_TNH, got.lse_NT}, c.spec(), c.blocks, tiles);
  CHECK(relative_error(grads.dq_TNH, want.dq) < kTolerance);
  CHECK(relative_error(grads.dk_SMH, want.dk) < kTolerance);
  CHECK(relative_error(grads.dv_SMH, want.dv) < kTolerance);
}

std::vector<const Tiles*> tiles_that_run() {
  const std::pair<CpuCapability, const Tiles*> all[] = {
      {CpuCapability::kPortable, portable_tiles()},
      {CpuCapability::kAvx2, avx2_tiles()},
      {CpuCapability::kAvx512, avx512_tiles()}};
  std::vector<const Tiles*> run;
  for (const auto& [capability, tiles] : all) {
    if (capability <= widest_cpu_capability()) run.push_back(tiles);
  }
  return run;
}

}  // namespace

TEST_CASE("flash attention equals plain fp64 attention for every instruction set and block shape") {
  at::manual_seed(7);
  const std::vector<Case> cases = {
      {"one causal document", 400, 400, 8, 2, 64, {{0, 400, 0, 400, true}}},
      {"one token", 1, 1, 2, 1, 16, {{0, 1, 0, 1, true}}},
      {"ragged documents",
       300,
       300,
       14,
       2,
       64,
       {{0, 97, 0, 97, true}, {97, 1, 97, 1, true}, {98, 202, 98, 202, true}}},
      {"all keys", 130, 250, 4, 4, 32, {{0, 130, 0, 250, false}}},
      {"head dim 80, one kv head for two threads", 210, 210, 3, 1, 80, {{0, 210, 0, 210, true}}},
      {"head dim 128", 200, 200, 2, 2, 128, {{0, 200, 0, 200, true}}},
      {"some queries and keys in no block",
       220,
       220,
       4,
       2,
       48,
       {{100, 60, 10, 150, false}, {170, 40, 170, 40, true}}},
      {"keys of one block in another too",
       100,
       64,
       2,
       1,
       16,
       {{0, 40, 0, 64, false}, {50, 50, 0, 50, true}}},
      {"a window of 50 and one of 1",
       500,
       500,
       4,
       2,
       32,
       {{0, 400, 0, 400, true, 0, -49}, {400, 100, 400, 100, true, 0, 0}}},
      {"a window longer than tiles", 1000, 1000, 4, 1, 16, {{0, 1000, 0, 1000, true, 0, -299}}},
      {"a window with nothing for the last queries, and one that begins behind the first keys",
       420,
       500,
       2,
       2,
       16,
       {{7, 300, 3, 200, false, 0, -60}, {310, 110, 190, 300, true, 150, 40}}},
      {"a window over keys of another block",
       300,
       300,
       2,
       1,
       16,
       {{0, 150, 0, 150, true, 0, -69}, {150, 69, 80, 70, false, 0, 1}, {219, 81, 0, 300, false}}},
      {.name = "a softcap",
       .T = 200,
       .S = 200,
       .N = 4,
       .M = 2,
       .H = 32,
       .blocks = {{0, 200, 0, 200, true}},
       .scale = 3.0,
       .softcap = 20.0},
      {.name = "a softcap in a window, large and small scores",
       .T = 200,
       .S = 200,
       .N = 4,
       .M = 2,
       .H = 32,
       .blocks = {{0, 200, 0, 200, true, 0, -29}},
       .scale = 0.05,
       .softcap = 5.0},
      {.name = "head dim 256",
       .T = 130,
       .S = 130,
       .N = 2,
       .M = 1,
       .H = 256,
       .blocks = {{0, 130, 0, 130, true}}},
      {.name = "head dim 512, values of 256",
       .T = 90,
       .S = 90,
       .N = 2,
       .M = 1,
       .H = 512,
       .blocks = {{0, 90, 0, 90, true, 0, -39}},
       .value_dim = 256},
      {"more queries than keys, causal", 260, 100, 2, 2, 16, {{0, 260, 0, 100, true}}},
      {"more keys than queries, causal", 100, 260, 2, 2, 16, {{0, 100, 0, 260, true}}},
      {"the later queries", 150, 400, 4, 2, 32, {{0, 150, 0, 400, true, 250}}},
      {"two parts of the queries, one kv head for two threads",
       200,
       400,
       2,
       1,
       16,
       {{0, 100, 0, 200, true, 100}, {100, 100, 0, 400, true, 300}}},
      {"an offset beyond the keys, another not",
       220,
       200,
       2,
       1,
       16,
       {{0, 50, 0, 90, true, 100}, {50, 170, 90, 110, true, 7}}},
      {"an odd scale", 210, 210, 4, 2, 32, {{0, 210, 0, 210, true}}, 32, 0.0917},
      {"values wider than keys", 400, 400, 8, 2, 32, {{0, 400, 0, 400, true}}, 80, 0.3},
      {"values narrower than keys, keys of one block in another too",
       300,
       300,
       3,
       1,
       96,
       {{0, 200, 0, 200, true}, {200, 100, 40, 160, false}},
       16},
  };
  for (const Tiles* tiles : tiles_that_run()) {
    CAPTURE(tiles->instructions);
    for (const Case& c : cases) check(c, *tiles);
  }
}

TEST_CASE("flash attention: a NaN stays one, and a score far below the largest has no weight") {
  const int64_t T = 200, at = 70, H = 16;
  for (const Tiles* tiles : tiles_that_run()) {
    CAPTURE(tiles->instructions);
    at::Tensor q = at::randn({T, 1, H}), k = at::randn({T, 1, H}), v = at::randn({T, 1, H});
    const auto nan_rows = [&](const at::Tensor& bad_q, const at::Tensor& bad_k) {
      const at::Tensor out = forward(bad_q, bad_k, v, kSpec, {{0, T, 0, T, true}}, *tiles).out_TNH;
      return out.isnan().all(-1).squeeze(1);
    };
    at::Tensor bad = q.clone();
    bad[at].fill_(NAN);
    CHECK(at::equal(nan_rows(bad, k), at::arange(T) == at));
    bad = k.clone();
    bad[at].fill_(NAN);
    CHECK(at::equal(nan_rows(q, bad), at::arange(T) >= at));

    // Scores 0 and 100: e^-100 underflows in fp32.
    const AttentionSpec plain{.scale = 1.0};
    const std::vector<Block> block{{0, 1, 0, 2, false}};
    q = at::zeros({1, 1, H});
    k = at::zeros({2, 1, H});
    v = at::ones({2, 1, H});
    q[0][0][0] = 10;
    k[1][0][0] = 10;
    v[0].fill_(1e38);
    const AttentionResult got = forward(q, k, v, plain, block, *tiles);
    CHECK(at::equal(got.out_TNH[0], v[1]));
    const AttentionGradients grads =
        backward({at::ones_like(q), q, k, v, got.out_TNH, got.lse_NT}, plain, block, *tiles);
    CHECK(at::equal(grads.dv_SMH[0], at::zeros_like(v[0])));
  }
}

TEST_CASE("flash attention: tasks of several query tiles of a small group") {
  const int before = at::get_num_threads();
  at::set_num_threads(1);  // so that these short rows make enough tasks
  const std::vector<Block> blocks{
      {0, 300, 0, 300, true}, {300, 100, 0, 350, true, 260}, {400, 150, 350, 150, false}};
  check({"four tiles", 550, 500, 16, 16, 16, blocks}, best_tiles());
  check({"two tiles", 550, 500, 16, 8, 16, blocks}, best_tiles());
  at::set_num_threads(before);
}

/// Sets the number of threads for its lifetime, whatever the number of cores.
class Threads {
 public:
  explicit Threads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

TEST_CASE("flash attention: the same bits with any number of threads") {
  at::manual_seed(9);
  const int64_t T = 1300, N = 6, M = 3, H = 16;
  const at::Tensor q = at::randn({T, N, H}), k = at::randn({T, M, H}), v = at::randn({T, M, H}),
                   dout = at::randn({T, N, H});
  const std::vector<std::vector<Block>> rows = {
      {{0, T, 0, T, true}},
      {{0, 50, 0, 50, true}, {50, 700, 50, 700, true}, {750, 550, 750, 550, true}},
      // Queries and keys in several blocks at any offsets; two blocks of queries in one tile.
      {{0, 310, 0, 310, true},
       {310, 990, 0, 310, false},
       {310, 400, 310, 400, true},
       {710, 590, 450, 260, false},
       {710, 590, 710, 590, true}},
      {{0, 600, 0, T, false}, {600, 700, 0, T, true, 600}},
      // A window whose first key is at no tile's start.
      {{0, T, 0, T, true, 0, -299}},
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    CAPTURE(i);
    const auto run = [&](int num_threads) {
      const Threads threads(num_threads);
      const AttentionResult result =
          forward(q, k, v, kSpec, rows[i].size() == 5 ? rows[0] : rows[i]);
      return std::pair(result,
                       backward({dout, q, k, v, result.out_TNH, result.lse_NT}, kSpec, rows[i]));
    };
    const auto [alone_result, alone] = run(1);
    for (const int num_threads : {2, 7, 32}) {
      CAPTURE(num_threads);
      const auto [result, together] = run(num_threads);
      CHECK(at::equal(result.out_TNH, alone_result.out_TNH));
      CHECK(at::equal(result.lse_NT, alone_result.lse_NT));
      CHECK(at::equal(together.dq_TNH, alone.dq_TNH));
      CHECK(at::equal(together.dk_SMH, alone.dk_SMH));
      CHECK(at::equal(together.dv_SMH, alone.dv_SMH));
    }
  }
}

TEST_CASE("flash attention: the backward's memory is its gradients and a little of each thread") {
  const int64_t T = 2048, N = 6, M = 3, H = 16;
  const at::Tensor q = at::randn({T, N, H}), k = at::randn({T, M, H}), v = at::randn({T, M, H});
  const std::vector<Block> blocks{{0, T, 0, T, true}};
  const AttentionResult result = forward(q, k, v, kSpec, blocks);
  for (const int num_threads : {1, 32}) {
    CAPTURE(num_threads);
    const Threads threads(num_threads);
    AllocationCounter counter(AllocationCounter::Of::kProcess);
    backward({q, q, k, v, result.out_TNH, result.lse_NT}, kSpec, blocks);
    const int64_t gradients = T * H * (N + 2 * M), delta = T * N;
    const int64_t tasks = M * ((T + kKeyTile - 1) / kKeyTile);
    const int64_t scratch =
        std::min<int64_t>(tasks, num_threads) * best_tiles().backward_scratch(H, H, N / M);
    CHECK(counter.peak_bytes() <= 4 * (gradients + delta + scratch));
  }
}

TEST_CASE("flash attention reads tensors with any token and head stride") {
  const int64_t T = 150;
  const at::Tensor qkv = at::randn({T, 6, 32}), dout = at::randn({2, T, 32}).transpose(0, 1);
  const at::Tensor q = qkv.narrow(1, 0, 2), k = qkv.narrow(1, 2, 2), v = qkv.narrow(1, 4, 2);
  const std::vector<Block> blocks{{0, T, 0, T, true}};
  const AttentionResult a = forward(q, k, v, kSpec, blocks);
  const AttentionResult b = forward(q.contiguous(), k.contiguous(), v.contiguous(), kSpec, blocks);
  CHECK(at::equal(a.out_TNH, b.out_TNH));
  const AttentionGradients x = backward({dout, q, k, v, a.out_TNH, a.lse_NT}, kSpec, blocks);
  const AttentionGradients y = backward(
      {dout.contiguous(), q.contiguous(), k.contiguous(), v.contiguous(), b.out_TNH, b.lse_NT},
      kSpec, blocks);
  CHECK(at::equal(x.dq_TNH, y.dq_TNH));
  CHECK(at::equal(x.dk_SMH, y.dk_SMH));
}

TEST_CASE("large scores neither overflow nor vanish") {
  const at::Tensor q = at::randn({64, 1, 16}) * 100, k = at::randn({64, 1, 16}) * 100,
                   v = at::randn({64, 1, 16});
  const std::vector<Block> blocks{{0, 64, 0, 64, true}};
  const AttentionResult got = forward(q, k, v, kSpec, blocks);
  const Reference want = reference(q, k, v, v, kSpec, blocks);
  // fp32 rounds scores near 1e5 to 1e-2, so only places with a clear maximum can be compared.
  CHECK(got.out_TNH.isfinite().all().item<bool>());
  CHECK(relative_error(got.lse_NT, want.lse) < 1e-6);
}

}  // namespace longspan::flash
