// Code that must not make the host wait, with the numbers of the CPU.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>
#include <vector>

#include "longspan/kernels/embedding.h"
#include "longspan/layers/expert_dispatch.h"
#include "longspan/memory/activation_offload.h"
#include "longspan/memory/host_memory.h"
#include "longspan/memory/transfer.h"
#include "longspan/objectives/kto.h"
#include "longspan/objectives/load_balance.h"
#include "longspan/objectives/preference.h"
#include "longspan/testing/accelerator/accelerator.h"
#include "longspan/testing/accelerator/host_waits.h"
#include "longspan/testing/accelerator/planted.h"
#include "longspan/testing/accelerator/streams_for_tests.h"

namespace longspan::testing::accelerator {
namespace {

int64_t num_waits() { return Machine::get().counters().host_syncs; }

TEST_CASE("accelerator: a bf16 embedding's gradient is the CPU's, and nobody counts its tokens") {
  install();
  at::manual_seed(1);
  const int64_t T = 500, V = 40, D = 600;
  const at::Tensor tokens_T = at::rand({T}).pow(3).mul(V).to(at::kLong),
                   rows_TD = at::randn({T, D}).to(at::kBFloat16),
                   weight_VD = at::randn({V, D}).to(at::kBFloat16);
  const auto gradient_on = [&](at::Device where) {
    const at::Tensor leaf = weight_VD.to(where).requires_grad_(true);
    const at::Tensor tokens = tokens_T.to(where), rows = rows_TD.to(where);
    waits_at_most(0, [&] {
      for (int row = 0; row < 2; ++row) {
        torch::autograd::backward({embed(leaf, tokens, at::kBFloat16, /*padding_token=*/3)},
                                  {rows});
      }
    });
    return leaf.grad().cpu();
  };
  CHECK(at::equal(gradient_on(device()), gradient_on(at::kCPU)));
}

/// Puts blocks of a row and gets them in reverse, as a backward does. Returns the error.
at::Tensor one_row(ActivationOffload& store, int64_t num_tokens) {
  std::vector<std::shared_ptr<SavedTensors>> blocks;
  for (int64_t i = 0; i < 6; ++i) {
    blocks.push_back(store.put({at::full({num_tokens, 100}, i, on_device()),
                                at::full({7, num_tokens}, -i, on_device(at::kBFloat16))}));
  }
  at::Tensor off = at::zeros({}, on_device());
  for (int64_t i = 5; i >= 0; --i) {
    const at::Tensor x = blocks.back()->get(0), y = blocks.back()->get(1);
    blocks.back()->read_previous_ahead();
    off.add_((x - i).abs().sum()).add_((y + i).abs().sum());
    blocks.pop_back();
  }
  return off;
}

TEST_CASE("accelerator: activations leave and come back without a wait, in memory of one row") {
  install();
  constexpr int64_t kTokenBytes = 100 * 4 + 7 * 2, kBlocks = 6;
  const int64_t elsewhere = host_bytes().live;
  const auto bytes_on_host = [&] { return host_bytes().live - elsewhere; };
  ActivationOffload store(device());
  at::Tensor off = one_row(store, 300);
  CHECK(bytes_on_host() == kBlocks * 300 * kTokenBytes);
  Machine::get().restart_peak(0);
  const int64_t before = Machine::get().bytes(0).now;
  waits_at_most(0, [&] {
    for (const int64_t num_tokens : {300, 200, 300, 290}) off = off + one_row(store, num_tokens);
  });
  // One or two blocks, and the computation on one.
  CHECK(Machine::get().bytes(0).most - before < 5 * 300 * kTokenBytes);
  CHECK(bytes_on_host() == kBlocks * 300 * kTokenBytes);  // those of the first row
  restart_host_peak();
  off = off + one_row(store, 310);  // may wait for memory of the smaller rows
  CHECK(bytes_on_host() <= kBlocks * 310 * kTokenBytes);
  CHECK(host_bytes().peak - elsewhere <= kBlocks * 310 * kTokenBytes);
  waits_at_most(0, [&] { off = off + one_row(store, 310) + one_row(store, 300); });
  CHECK(off.item<float>() == 0);
}

TEST_CASE("accelerator: what is thrown away on its way leaves no memory in use") {
  install();
  ActivationOffload store(device());
  for (int i = 0; i < 3; ++i) {
    const auto first = store.put({at::ones({300}, on_device())});
    const auto second = store.put({at::ones({300}, on_device())});
    second->read_previous_ahead();
  }
  // The next allocations may reuse the dropped memory, which is a race if a copy still uses it.
  for (int i = 0; i < 6; ++i) CHECK_NOTHROW(at::zeros({300}, on_device()).add_(1));
}

TEST_CASE("accelerator: how many rows go to each expert is waited for once, when it is asked") {
  install();
  const at::Tensor experts_CK = at::tensor({3, 0, 1, 3, 0, 3}, at::kLong).view({3, 2});
  const at::Tensor there = experts_CK.to(device());
  Machine::get().restart_counters();
  const ExpertDispatch sorted(there, /*num_experts=*/5, /*exchange=*/nullptr);
  CHECK(num_waits() == 0);
  std::vector<int64_t> counts;
  sorted.for_each([&](size_t, int64_t, int64_t count) { counts.push_back(count); });
  sorted.for_each([](size_t, int64_t, int64_t) {});
  CHECK(num_waits() == 1);
  CHECK(counts == std::vector<int64_t>{2, 1, 0, 3, 0});
  CHECK(sorted.rows().cpu().equal(at::tensor({0, 2, 1, 0, 1, 2}, at::kLong)));
}

TEST_CASE("accelerator: estimates and loads of a step stay on the device") {
  install();
  at::manual_seed(2);
  const auto scores = [] { return -20 - 10 * at::rand({6}, at::kDouble); };
  const PairScores here{scores(), scores(), scores(), scores(), scores(), scores()};
  const PairScores there{
      here.chosen_B.to(device()),           here.rejected_B.to(device()),
      here.reference_chosen_B.to(device()), here.reference_rejected_B.to(device()),
      here.chosen_labels_B.to(device()),    here.rejected_labels_B.to(device())};
  const PairOptions options{.loss = PairLoss::kKtoPair};
  const at::Tensor sums_3 = at::tensor({7.5, 6.0, 2.0}, at::kDouble),
                   counts_LE = at::rand({3, 4}, at::kDouble) * 10;
  const at::Tensor sums_there = sums_3.to(device()), counts_there = counts_LE.to(device());
  PairTerms pairs;
  KtoBatch batch;
  at::Tensor gradient_E;
  waits_at_most(0, [&] {
    pairs = pair_terms(there, options, pair_baselines(there, options));
    batch = kto_batch(sums_there);
    gradient_E = load_balance_gradient(counts_there, 2, 0.1);
  });
  CHECK(pairs.losses_B.cpu().equal(
      pair_terms(here, options, pair_baselines(here, options)).losses_B));
  CHECK(batch.kl.item<double>() == 7.5 / 6);
  CHECK(gradient_E.cpu().equal(load_balance_gradient(counts_LE, 2, 0.1)));
}

TEST_CASE("accelerator: a wait of the host too many is found each time, and no other is") {
  install();
  at::manual_seed(3);
  const at::Tensor tokens_T = at::arange(20, on_device(at::kLong)).remainder(7),
                   weight_VD = at::randn({9, 4}).to(device()).requires_grad_(true),
                   experts_CK = at::tensor({3, 0, 1, 3}, at::kLong).view({2, 2}).to(device()),
                   on_host = at::arange(12, at::kLong), x = at::ones({100}, on_device());
  const c10::Stream side = another_stream();
  check_planted({
      {"an extra .item()", Fault::kHostWaits,
       [&](bool faulty) {
         waits_at_most(0, [&] {
           const at::Tensor rows = embed(weight_VD, tokens_T, at::kFloat, std::nullopt);
           const at::Tensor loss = rows.square().sum();
           if (faulty) static_cast<void>(loss.item<float>());
           torch::autograd::backward({loss}, {});
         });
       }},
      {"an extra .item(), where one wait is known", Fault::kHostWaits,
       [&](bool faulty) {
         waits_at_most(1, [&] {
           const ExpertDispatch sorted(experts_CK, /*num_experts=*/5, /*exchange=*/nullptr);
           sorted.for_each([](size_t, int64_t, int64_t) {});
           if (faulty) static_cast<void>(experts_CK.max().item<int64_t>());
         });
       }},
      {"numbers are read one by one, as they are made", Fault::kHostWaits,
       [&](bool faulty) {
         waits_at_most(1, [&] {
           const ToHost first(x + 1);
           if (faulty) static_cast<void>(first.here());
           const ToHost second(x + 2);
           static_cast<void>(second.here());
           static_cast<void>(first.here());
         });
       }},
      {"what is sent lies in memory that is not pinned", Fault::kHostWaits,
       [&](bool faulty) {
         waits_at_most(0, [&] {
           if (faulty) {
             static_cast<void>(on_host.to(device(), /*non_blocking=*/true));
           } else {
             static_cast<void>(sent_to(on_host, device()));
           }
         });
       }},
      {"a number of results is asked for", Fault::kHostWaits,
       [&](bool faulty) {
         waits_at_most(0, [&] {
           const at::Tensor chosen = tokens_T.eq(3);
           static_cast<void>(faulty ? tokens_T.masked_select(chosen)
                                    : tokens_T.masked_fill(chosen, 0));
         });
       }},
      {"the host waits for what a stream can wait for", Fault::kHostWaits,
       [&](bool faulty) {
         waits_at_most(0, [&] {
           wait(side, main_stream());
           const at::Tensor y = on(side, [&] { return x * 2; });
           if (faulty) {
             guard().synchronizeStream(side);
           } else {
             wait(main_stream(), side);
           }
           static_cast<void>(y + 1);
           y.record_stream(main_stream());
         });
       }},
  });
}

}  // namespace
}  // namespace longspan::testing::accelerator
