// Keys: answers to the rows of evaluation.
#include "longspan/config/config.h"
#include "longspan/config/key_tables.h"

namespace longspan::key_tables {

KeySection generation_keys() {
  using S = GenerationSettings;
  using enum OnResume;
  Key top_p = number("top_p", &S::top_p, kFree, 0,
                     "Answers: sample from the most probable tokens with this total probability.");
  top_p.above_least = true;
  top_p.most = 1;
  Key penalty = number("repetition_penalty", &S::repetition_penalty, kFree, 0,
                       "Answers: above 1, tokens that occurred before become less probable.");
  penalty.above_least = true;
  return {
      "Answers in evaluation",
      {plain("predict_with_generate", &S::predict_with_generate, kFree,
             "Evaluations answer the rows and compare the answers with those of the rows (BLEU-4 "
             "and ROUGE), in place of the loss. Answers are computed on the CPU."),
       noted(plain("do_predict", &S::do_predict, kFree,
                   "After training, answer the rows of evaluation once, and write the answers into "
                   "generated_predictions.jsonl. Wants predict_with_generate: true. Without "
                   "do_train, the run only answers."),
             "Stages rm and pt have it too there."),
       plain("do_sample", &S::do_sample, kFree,
             "Answers: sample each token. false: take the most probable token."),
       number("temperature", &S::temperature, kFree, 0,
              "Answers: larger values make them more random; 0: the most probable token."),
       top_p,
       number("top_k", &S::top_k, kFree, 0,
              "Answers: sample from this number of most probable tokens; 0: all.", kMostTokens),
       number("max_new_tokens", &S::max_new_tokens, kFree, 1, "The most tokens of an answer.",
              kMostTokens),
       penalty,
       noted(plain("skip_special_tokens", &S::skip_special_tokens, kFree,
                   "Leave tokens like <|im_end|> out of the answers in "
                   "generated_predictions.jsonl."),
             "With false, the file has padding there.")}};
}

}  // namespace longspan::key_tables
