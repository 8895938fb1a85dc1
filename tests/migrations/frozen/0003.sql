BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0003');
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
COMMIT;
