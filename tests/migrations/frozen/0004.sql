BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0004');
CREATE TABLE conversations (
	"key" TEXT NOT NULL, 
	parent_key TEXT, 
	fork_turn_id TEXT, 
	status TEXT DEFAULT 'active' NOT NULL, 
	label TEXT DEFAULT '' NOT NULL, 
	summary TEXT DEFAULT '' NOT NULL, 
	created_at TEXT NOT NULL, 
	updated_at TEXT NOT NULL, 
	next_seq INTEGER DEFAULT 1 NOT NULL, 
	compacted_seq INTEGER DEFAULT 0 NOT NULL, 
	inherited_seq INTEGER, 
	inherited_summary TEXT, 
	imported_at TEXT, 
	imported_from TEXT, 
	CONSTRAINT pk_conversations PRIMARY KEY ("key"), 
	CONSTRAINT ck_conversations_next_seq CHECK (next_seq >= 1), 
	CONSTRAINT ck_conversations_compacted_seq CHECK (compacted_seq >= 0), 
	CONSTRAINT ck_conversations_compacted_below_next CHECK (compacted_seq < next_seq), 
	CONSTRAINT fk_conversations_parent_key_conversations FOREIGN KEY(parent_key) REFERENCES conversations ("key") ON DELETE SET NULL
);
INSERT INTO "conversations" VALUES('agent:ada:main',NULL,NULL,'active','Ada`s "main" line
and more 🐟','It doesn''t rain in Ōsaka.

A scout was sent.','2026-11-29T08:30:00.000Z','2026-11-29T11:30:00.125Z',8,4,NULL,NULL,NULL,NULL);
INSERT INTO "conversations" VALUES('subagent:scout-1','agent:ada:main','fork-point-of-subagent:scout-1','completed','scout-1','','2026-11-29T08:30:00.000Z','2026-11-29T11:30:00.125Z',2,0,NULL,NULL,NULL,NULL);
INSERT INTO "conversations" VALUES('agent:ada:try','agent:ada:main','fork-point-of-agent:ada:try','active','try redis','','2026-11-29T08:30:00.000Z','2026-11-29T11:30:00.125Z',4,0,2,NULL,NULL,NULL);
INSERT INTO "conversations" VALUES('telegram:-100_12345/дом',NULL,NULL,'paused-by-v9','','','2026-11-29T08:30:00.000Z','2026-11-29T08:30:00.000Z',1,0,NULL,NULL,'2026-11-29T08:30:00.000Z','telegram_-100_12345_дом.json#9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08');
INSERT INTO "conversations" VALUES('agent:ada:main:fork:20261129T113000','agent:ada:main','fork-point-of-agent:ada:main:fork:20261129T113000','active','','','2026-11-29T11:30:00.125Z','2026-11-29T11:30:00.125Z',8,4,7,'It doesn''t rain in Ōsaka.

A scout was sent.',NULL,NULL);
CREATE TABLE introductions (
	role TEXT NOT NULL, 
	sender TEXT NOT NULL, 
	introduced_at TEXT NOT NULL, 
	updated_at TEXT NOT NULL, 
	CONSTRAINT pk_introductions PRIMARY KEY (role, sender)
);
INSERT INTO "introductions" VALUES('worker','alice@bot.example','2026-11-29T08:30:00.000Z','2026-11-29T11:30:00.125Z');
INSERT INTO "introductions" VALUES('worker','bücher@bot.example','2026-11-29T08:30:00.000Z','2026-11-29T08:30:00.000Z');
CREATE TABLE pending_approval (
	job_id TEXT NOT NULL, 
	requested_by TEXT NOT NULL, 
	commit_message TEXT NOT NULL, 
	created_at TEXT NOT NULL, claimed_at TEXT, claimed_by TEXT, 
	CONSTRAINT pk_pending_approval PRIMARY KEY (job_id)
);
INSERT INTO "pending_approval" VALUES('job-7','alice@bot.example','Add a licence

O''Brien''s words: "MIT" (naïve, ja?)','2026-11-29T08:30:00.000Z','2026-11-29T11:30:00.125Z','O''Brien');
INSERT INTO "pending_approval" VALUES('job-8','bob@bot.example','Räume auf','2026-11-29T08:30:00.000Z',NULL,NULL);
CREATE TABLE pending_approval_repo (
	job_id TEXT NOT NULL, 
	repo_dir TEXT NOT NULL, stash_commit TEXT, done_at TEXT, commit_sha TEXT, 
	CONSTRAINT pk_pending_approval_repo PRIMARY KEY (job_id, repo_dir), 
	CONSTRAINT fk_pending_approval_repo_job_id_pending_approval FOREIGN KEY(job_id) REFERENCES pending_approval (job_id) ON DELETE CASCADE
);
INSERT INTO "pending_approval_repo" VALUES('job-7','/srv/git/eins','5f0c1d9a7be24c36a1d2e8f90b7c6d5e4f3a2b1c','2026-11-29T11:30:00.125Z','c0ffee0123456789abcdef0123456789abcdef01');
INSERT INTO "pending_approval_repo" VALUES('job-7','/srv/git/two and a half',NULL,NULL,NULL);
INSERT INTO "pending_approval_repo" VALUES('job-8','/srv/git/дом',NULL,NULL,NULL);
CREATE TABLE sessions (
	role TEXT NOT NULL, 
	sender TEXT NOT NULL, 
	session_id TEXT NOT NULL, 
	updated_at TEXT NOT NULL, 
	CONSTRAINT pk_sessions PRIMARY KEY (role, sender)
);
INSERT INTO "sessions" VALUES('worker','alice@bot.example','0198f2c4-7b1e-7c3a-9d55-0a1b2c3d4e5f','2026-11-29T08:30:00.000Z');
INSERT INTO "sessions" VALUES('builder','alice@bot.example','thread_ключ/2026-11-29','2026-11-29T08:30:00.000Z');
INSERT INTO "sessions" VALUES('worker','Telegram:42','s''; DROP TABLE sessions; --','2026-11-29T08:30:00.000Z');
CREATE TABLE start_pending (
	job_id TEXT NOT NULL, 
	sender TEXT NOT NULL, 
	requested_by TEXT NOT NULL, 
	body TEXT NOT NULL, 
	created_at TEXT NOT NULL, claimed_at TEXT, claimed_by TEXT, 
	CONSTRAINT pk_start_pending PRIMARY KEY (job_id)
);
INSERT INTO "start_pending" VALUES('job-1','alice@bot.example','worker','Füge eine "Lizenz" hinzu:

	MIT, bitte 🐟
','2026-11-29T08:30:00.000Z','2026-11-29T11:30:00.125Z','builder@host:4711');
INSERT INTO "start_pending" VALUES('job-1 (2)','Telegram:42','Telegram:42','it''s 100% done; isn''t it? 日本','2026-11-29T08:30:00.000Z',NULL,NULL);
CREATE TABLE turns (
	id TEXT NOT NULL, 
	conversation_key TEXT NOT NULL, 
	seq INTEGER NOT NULL, 
	kind INTEGER DEFAULT 0 NOT NULL, 
	message_count INTEGER NOT NULL, 
	origin_key TEXT, 
	summary TEXT, 
	author TEXT DEFAULT '' NOT NULL, 
	created_at TEXT NOT NULL, 
	meta TEXT, 
	messages TEXT NOT NULL, 
	CONSTRAINT pk_turns PRIMARY KEY (id), 
	CONSTRAINT ck_turns_seq CHECK (seq >= 1), 
	CONSTRAINT fk_turns_conversation_key_conversations FOREIGN KEY(conversation_key) REFERENCES conversations ("key") ON DELETE CASCADE, 
	CONSTRAINT uq_turns_conversation_key_seq UNIQUE (conversation_key, seq)
);
INSERT INTO "turns" VALUES('0198f2c4-7b1e-7c3a-9d55-0a1b2c3d0001','agent:ada:main',1,0,1,NULL,NULL,'','2026-11-29T08:30:00.000Z',NULL,'[{"role":"user","content":"Regnet es in Ōsaka? It''s 100% urgent; isn''t it?"}]');
INSERT INTO "turns" VALUES('0198f2c4-7b1e-7c3a-9d55-0a1b2c3d0002','agent:ada:main',2,0,3,NULL,'Says "no"','O''Brien','2026-11-29T08:30:00.000Z','{"model":"日本","nul":"\u0000"}','[{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Ōsaka\"}"}}]},{"role":"tool","content":"14 °C\u0000\ud83d\u001b[0m","tool_call_id":"call_1"},{"role":"assistant","content":"No.","x_vendor":{"n":1180591620717411303424,"list":[1.5,null,true]}}]');
INSERT INTO "turns" VALUES('fork-point-of-subagent:scout-1','agent:ada:main',3,2,0,NULL,NULL,'','2026-11-29T08:30:00.000Z','{"task_id":"scout-1","child":"subagent:scout-1","inherit":false}','[]');
INSERT INTO "turns" VALUES('turn '' 1','subagent:scout-1',1,0,1,NULL,NULL,'','2026-11-29T08:30:00.000Z',NULL,'[{"role":"assistant","content":"JWT"}]');
INSERT INTO "turns" VALUES('fork-point-of-agent:ada:try','agent:ada:main',4,2,0,NULL,NULL,'','2026-11-29T08:30:00.000Z','{"why":"free","child":"agent:ada:try","inherit":true,"at_seq":2}','[]');
INSERT INTO "turns" VALUES('turn-in-branch','agent:ada:try',3,0,1,NULL,NULL,'','2026-11-29T11:30:00.125Z',NULL,'[{"role":"user","content":"Try it."}]');
INSERT INTO "turns" VALUES('report-1','agent:ada:main',5,1,1,'subagent:scout-1',NULL,'scout-1','2026-11-29T11:30:00.125Z',NULL,'[{"role":"user","content":"JWT is\nenough."}]');
INSERT INTO "turns" VALUES('question-1','agent:ada:main',6,10,1,'subagent:gone',NULL,'','2026-11-29T11:30:00.125Z',NULL,'[{"role":"user","content":"Shall I?"}]');
INSERT INTO "turns" VALUES('fork-point-of-agent:ada:main:fork:20261129T113000','agent:ada:main',7,2,0,NULL,NULL,'','2026-11-29T11:30:00.125Z','{"child":"agent:ada:main:fork:20261129T113000","inherit":true}','[]');
CREATE INDEX ix_conversations_parent_key ON conversations (parent_key);
CREATE INDEX ix_conversations_updated_at ON conversations (updated_at);
COMMIT;
