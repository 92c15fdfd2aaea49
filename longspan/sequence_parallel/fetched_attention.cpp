#include "longspan/sequence_parallel/fetched_attention.h"

#include <ATen/ATen.h>

#include <memory>
#include <utility>

#include "longspan/attention/merge.h"
#include "longspan/sequence_parallel/seeing_queries.h"

namespace longspan {
namespace {

constexpr int kSlots = 2;  // messages: keys and values

int64_t num_tokens(const std::vector<TokenRun>& runs) {
  int64_t count = 0;
  for (const TokenRun& run : runs) count += run.length;
  return count;
}

at::Tensor gathered(const at::Tensor& x_TMH, const std::vector<TokenRun>& runs) {
  if (runs.size() == 1) return x_TMH.narrow(0, runs[0].begin, runs[0].length).contiguous();
  std::vector<at::Tensor> parts;
  for (const TokenRun& run : runs) parts.push_back(x_TMH.narrow(0, run.begin, run.length));
  return at::cat(parts);
}

void add_scattered_(at::Tensor& total_TMH, const std::vector<TokenRun>& runs,
                    const at::Tensor& part) {
  int64_t token = 0;
  for (const TokenRun& run : runs) {
    total_TMH.narrow(0, run.begin, run.length).add_(part.narrow(0, token, run.length));
    token += run.length;
  }
}

at::Tensor room_for(const at::Tensor& like_TMH, const std::vector<TokenRun>& runs) {
  return at::empty({num_tokens(runs), like_TMH.size(1), like_TMH.size(2)}, like_TMH.options());
}

/// Gradients in transit: of a step's keys to the keys' owner, and of this rank's keys to this rank.
struct Homeward {
  Pending arrival;
  const std::vector<TokenRun>* runs;
  at::Tensor dk, dv;
};

}  // namespace

FetchedAttention::FetchedAttention(Group ring, const RingLayout& layout, const BlockKernel& kernel,
                                   const AttentionSpec& spec, const Packing& padded)
    : ring_(std::move(ring)), kernel_(kernel), spec_(spec) {
  const int R = ring_.size(), rank = ring_.rank();
  own_ = blocks_of(layout, padded, rank, rank, R, spec.window);
  for (int distance = 1; distance < R; ++distance) {
    const int owner = (rank - distance + R) % R, receiver = (rank + distance) % R;
    std::vector<Block> blocks = blocks_of(layout, padded, rank, owner, R, spec.window);
    std::vector<TokenRun> runs = keys_seen(blocks);
    blocks = over_runs(std::move(blocks), runs);
    steps_.push_back({owner, receiver, std::move(runs),
                      keys_seen(blocks_of(layout, padded, receiver, rank, R, spec.window)),
                      std::move(blocks)});
  }
}

FetchedAttention::Fetched FetchedAttention::fetch(size_t step, const at::Tensor& k_TMH,
                                                  const at::Tensor& v_TMH) const {
  if (step >= steps_.size()) return {Pending({}), {}, {}};
  const Step& now = steps_[step];
  std::vector<Group::Message> send, receive;
  if (!now.given.empty()) {
    send = {{now.receiver, 0, gathered(k_TMH, now.given)},
            {now.receiver, 1, gathered(v_TMH, now.given)}};
  }
  at::Tensor k, v;
  if (!now.fetched.empty()) {
    k = room_for(k_TMH, now.fetched);
    v = room_for(v_TMH, now.fetched);
    receive = {{now.owner, 0, k}, {now.owner, 1, v}};
  }
  return {ring_.exchange(send, receive, kSlots), k, v};
}

AttentionResult FetchedAttention::forward(const at::Tensor& q_TNH, const at::Tensor& k_TMH,
                                          const at::Tensor& v_TMH) const {
  Fetched next = fetch(0, k_TMH, v_TMH);
  AttentionResult total = kernel_.forward(q_TNH, k_TMH, v_TMH, spec_, own_);
  total.out_TNH = total.out_TNH.to(total.lse_NT.scalar_type());
  for (size_t step = 0; step < steps_.size(); ++step) {
    Fetched now = std::move(next);
    now.arrival.wait_all();
    next = fetch(step + 1, k_TMH, v_TMH);
    const SeeingQueries seeing(steps_[step].blocks);
    if (seeing.blocks.empty()) continue;
    AttentionResult seen{seeing.of(total.out_TNH), seeing.of_lse(total.lse_NT)};
    merge_(seen, kernel_.forward(seeing.of(q_TNH), now.k, now.v, spec_, seeing.blocks));
  }
  return {total.out_TNH.to(q_TNH.scalar_type()), total.lse_NT};
}

AttentionGradients FetchedAttention::backward(const AttentionGradientInputs& inputs) const {
  Fetched next = fetch(0, inputs.k_SMH, inputs.v_SMH);
  AttentionGradients total = kernel_.backward(inputs, spec_, own_);
  std::unique_ptr<Homeward> homeward;
  const auto receive = [&] {
    if (!homeward) return;
    homeward->arrival.wait_all();
    if (homeward->dk.defined()) {
      add_scattered_(total.dk_SMH, *homeward->runs, homeward->dk);
      add_scattered_(total.dv_SMH, *homeward->runs, homeward->dv);
    }
    homeward.reset();
  };
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    Fetched now = std::move(next);
    now.arrival.wait_all();
    next = fetch(i + 1, inputs.k_SMH, inputs.v_SMH);
    const SeeingQueries seeing(step.blocks);
    std::vector<Group::Message> send, arriving;
    if (!seeing.blocks.empty()) {
      const AttentionGradients part =
          kernel_.backward(seeing.of(inputs, now.k, now.v), spec_, seeing.blocks);
      seeing.of(total.dq_TNH).add_(part.dq_TNH);
      send = {{step.owner, 0, part.dk_SMH.contiguous()}, {step.owner, 1, part.dv_SMH.contiguous()}};
    }
    receive();
    at::Tensor dk, dv;
    if (!step.given.empty()) {
      dk = room_for(total.dk_SMH, step.given);
      dv = room_for(total.dv_SMH, step.given);
      arriving = {{step.receiver, 0, dk}, {step.receiver, 1, dv}};
    }
    homeward = std::make_unique<Homeward>(
        Homeward{ring_.exchange(send, arriving, kSlots), &step.given, dk, dv});
  }
  receive();
  return total;
}

}  // namespace longspan
