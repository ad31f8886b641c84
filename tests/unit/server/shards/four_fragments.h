// A small run whose fragments can be dealt.
#ifndef CAUSEWAY_TESTS_UNIT_SERVER_SHARDS_FOUR_FRAGMENTS_H_
#define CAUSEWAY_TESTS_UNIT_SERVER_SHARDS_FOUR_FRAGMENTS_H_

#include "causeway/v1/config.pb.h"
#include "common/params/run_config.h"
#include "gtest/gtest.h"

namespace causeway::server {

// Four fragments of equal size, H = 8, int4 both ways.
inline v1::RunConfig FourFragments(int start_workers) {
  v1::RunConfig config;
  v1::ModelConfig& model = *config.mutable_model();
  model.set_vocabulary_size(128);
  model.set_layers(2);
  model.set_width(16);
  model.set_heads(2);
  model.set_mlp_width(32);
  model.set_sequence_length(8);
  v1::SyncConfig& sync = *config.mutable_sync();
  sync.set_pattern(v1::SyncConfig::BALANCED);
  sync.set_fragments(4);
  sync.set_steps_between_syncs(8);
  sync.set_codec_up(v1::INT4);
  sync.set_codec_down(v1::INT4);
  config.mutable_membership()->set_start_workers(start_workers);
  EXPECT_TRUE(CompleteRunConfig(config).ok());
  return config;
}

}  // namespace causeway::server

#endif  // CAUSEWAY_TESTS_UNIT_SERVER_SHARDS_FOUR_FRAGMENTS_H_
