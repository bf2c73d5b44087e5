// Package kafkasource reads Kafka for package consumer, with kafka-go.
//
// It is a thin adapter, and the only part of the consumer that knows kafka-go.
// Of that library it takes the consumer group (one generation at a time), the
// transport (leaders, connections, TLS, SASL) and the codecs. It does not take
// its Reader, nor its decoding of fetches: the comments at generation and
// fetchRequest say why.
//
// What it promises on top:
//
//   - Control records, and records of aborted transactions, never reach a
//     handler, and never hold a partition up.
//   - An offset that the log does not have is a *consumer.OffsetError with the
//     log's bounds, never a silent jump.
//   - A batch that can't be read (checksum, codec, format, size) is a
//     *consumer.BatchError, never a gap.
//   - A batch takes at most Config.MaxBatchBytes of memory, whatever it claims.
//   - A topic that is missing or compacted, and a number of partitions that
//     changed, are refused with the remedy.
//   - Offsets are committed in the generation that they belong to, also while it
//     is ending.
//
// # Traps
//
// Known faults of kafka-go by their number there, or found in its source, and
// what became of each here.
//
//	#1308   a commit after a rebalance moves the group's   Reader is not used: offsets are bound to their generation
//	        offset back                                    TestAGenerationThatIsOverCannotMoveTheGroupsOffset
//	#1398   records fetched before a rebalance are         a fetch belongs to a generation, and is dropped with it
//	        delivered behind it                            TestARebalanceInTheMiddleOfAHandlerEndsInTheSameStateWhoeverCommitsFirst
//	#1427   the Writer goes on when its context has ended  nothing is written here; the relay's publisher has no Writer
//	#1314   a topic that appears after the join is read    topics are looked at before the join, coverage behind it
//	        by nobody                                      TestTopicsThatCannotBeReadRightAreRefusedWithTheRemedy, TestPartitionsThatTheGroupsLeaderDidNotSeeGetAReader
//	#646    new partitions are not noticed, or joining     a watch of our own, which leaves the group
//	        again changes nothing                          TestANumberOfPartitionsThatChangesEndsTheGenerationAndIsRefused
//	#428    Close hangs when the network is gone           Close is bounded
//	        (#1006, #1248, #876)                           TestCloseReturnsAlsoWhenNobodyAnswers
//	#599    connections and goroutines leak                a transport of our own, closed with the source
//	                                                       TestNothingIsLeftBehindByClose
//	#891    an offset outside of the log is asked for      it is an error with the bounds, and located anew
//	        again for ever, or jumped over                 TestAnOffsetThatTheLogDoesNotHaveIsAnErrorWithItsBounds, TestATopicThatIsCreatedAnewDuringAnOutageIsNoticedWithoutARestart
//	#387    reading stops when a broker was away           each fetch stands for itself, and finds the leader anew
//	        (#621, #1276, #360)                            TestReadingGoesOnWhenTheBrokerWasAway
//	#781    errors of the group are read errors without    they end the generation, and the group is joined anew
//	        end (#1150)                                    TestTheGroupGoesOnWhenItsCoordinatorIsLost
//	#1179   ReadMessage commits before the work            offsets are committed behind the database's commit
//	                                                       TestKafkasOffsetNeverPassesWhatTheDatabaseHasCommitted
//	source  Reader delivers control and aborted records    batches are decoded here
//	                                                       TestControlRecordsAndAbortedTransactionsNeverReachTheHandler
//	source  an unknown codec, or a damaged batch, ends     it is an error that names the batch
//	        the loop, or loses the rest                    TestABatchThatCannotBeReadIsAnErrorAndNeverAGap
//	source  decompression has no bound                     it has, also on what a batch only claims
//	                                                       TestDecompressionIsBounded, TestABatchOfAFewBytesThatClaimsToBeLargeTakesNoMemory
//	source  without an offset it may begin at the end      StartOffset is the first, and consumer.Config.Begin decides
//	                                                       TestANewConsumerBeginsWhereItIsToldTo
//	source  an invalid configuration panics                it is checked before
//	                                                       TestAConfigurationThatCannotWorkIsRefusedAllAtOnce
package kafkasource
