#include "longspan/testing/plain_parts.h"

#include <memory>
#include <utility>
#include <vector>

#include "longspan/layers/plain_layer.h"

namespace longspan::testing {
namespace {

class PlainMixerOf : public PlainMixer {
 public:
  PlainMixerOf(std::unique_ptr<TokenMixer> mixer, int64_t hidden_size)
      : PlainMixer(hidden_size), mixer_(std::move(mixer)), hidden_size_(hidden_size) {}

  std::unique_ptr<TokenMixer> clone() const override {
    return std::make_unique<PlainMixerOf>(mixer_->clone(), hidden_size_);
  }
  std::vector<Linear*> linears() override {
    std::vector<Linear*> all = mixer_->linears_before();
    for (Linear* linear : mixer_->linears_after()) all.push_back(linear);
    return all;
  }
  /// These include the parameters of linear layers.
  std::vector<at::Tensor> other_parameters() const override { return mixer_->parameters_before(); }
  at::Tensor plain(const at::Tensor& x_TD, const RowContext& row) const override {
    return mixer_->plain(x_TD, row);
  }

 private:
  std::unique_ptr<TokenMixer> mixer_;
  int64_t hidden_size_;
};

/// Returns the cost that determines its chunks.
FeedForwardCost chunk_cost_of(const FeedForward& feed_forward) {
  FeedForwardCost cost;
  cost.width = feed_forward.width();
  cost.min_chunk_rows = feed_forward.min_chunk_rows();
  return cost;
}

class PlainFeedForwardOf : public PlainFeedForward {
 public:
  explicit PlainFeedForwardOf(std::unique_ptr<FeedForward> feed_forward)
      : PlainFeedForward(chunk_cost_of(*feed_forward)), feed_forward_(std::move(feed_forward)) {}

  std::unique_ptr<FeedForward> clone() const override {
    return std::make_unique<PlainFeedForwardOf>(feed_forward_->clone());
  }
  std::vector<Linear*> linears() override { return feed_forward_->linears(); }
  std::vector<at::Tensor> other_parameters() const override { return feed_forward_->parameters(); }
  at::Tensor plain(const at::Tensor& x_TD) const override { return feed_forward_->plain(x_TD); }

 private:
  std::unique_ptr<FeedForward> feed_forward_;
};

}  // namespace

Layer with_plain_mixer(Layer layer) {
  layer.mixer = std::make_shared<PlainMixerOf>(layer.mixer->clone(), layer.mixer_norm_D.size(0));
  return layer;
}

Layer with_plain_feed_forward(Layer layer) {
  layer.feed_forward = std::make_shared<PlainFeedForwardOf>(layer.feed_forward->clone());
  return layer;
}

}  // namespace longspan::testing
